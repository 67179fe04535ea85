"""Blobs: segments that are too large for a message of the log. Each waits for the message that
names it.

See docs/protocol.md, Grouping and size. A blob goes once its segment is ingested, or its tree is
over. Redeliveries of its message are then known by the segment.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from sqlalchemy import Connection, delete, func, select

from banyan.digest import DIGEST_BYTES, blake
from banyan.errors import InvalidInput, NotFound, Refused, TemporaryError
from banyan.reasons import Reason
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.events.decode import grown_segment
from services.treestore.events.events import Event, GrownSegment, LargeSegment
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.storage.sql import chunks, insert_ignore
from services.treestore.unit_of_work.rows import GROWING

_MAX_WAITING = 4  # blobs of the greatest size that may wait for messages of one tree


async def receive(
    parts: AsyncIterator[ts.PutBlobRequest], settings: Settings
) -> tuple[ts.PutBlobRequest, bytes]:
    """Return the first message of an upload, and all its bytes.

    Raises InvalidInput as soon as the bytes do not match the announced size and digest.
    """
    first: ts.PutBlobRequest | None = None
    data = bytearray()
    async for part in parts:
        if first is None:
            first = _checked(part, settings)
        data += part.chunk
        if len(data) > first.size:
            raise InvalidInput(
                f"blob {first.digest.hex()[:12]} has more than the {first.size} bytes"
                " that it was to have"
            )
    if first is None or len(data) != first.size or blake(bytes(data)) != first.digest:
        raise InvalidInput(
            f"a blob ended after {len(data)} bytes, or is not what its digest says; send it again"
        )
    return first, bytes(data)


def _checked(first: ts.PutBlobRequest, settings: Settings) -> ts.PutBlobRequest:
    if len(first.tree_id) != DIGEST_BYTES or len(first.digest) != DIGEST_BYTES:
        raise InvalidInput(
            f"a blob needs a tree id and a digest of {DIGEST_BYTES} bytes in its first piece"
        )
    if first.size > settings.blob_bytes:
        raise InvalidInput(
            f"a blob of {first.size} bytes is over the limit of {settings.blob_bytes};"
            " use shorter segments"
        )
    return first


def put(
    connection: Connection, first: ts.PutBlobRequest, data: bytes, now_ms: int, settings: Settings
) -> None:
    """Store a blob under a claim that is in force; a repetition changes nothing."""
    _check_claim(connection, first)
    table = schema.blobs
    waiting = select(func.coalesce(func.sum(func.length(table.c.data)), 0)).where(
        table.c.tree_id == first.tree_id
    )
    if int(connection.scalar(waiting) or 0) + len(data) > _MAX_WAITING * settings.blob_bytes:
        raise TemporaryError(
            f"tree {first.tree_id.hex()[:12]} has too many blobs that no message named yet",
            reason=Reason.BLOBS_WAIT,
        )
    row: dict[str, object] = {
        "digest": first.digest,
        "tree_id": first.tree_id,
        "data": data,
        "stored_ms": now_ms,
    }
    insert_ignore(connection, table, [row])


def _check_claim(connection: Connection, first: ts.PutBlobRequest) -> None:
    trees = schema.trees
    tree = connection.execute(
        select(trees.c.state, trees.c.claim_epoch).where(trees.c.tree_id == first.tree_id)
    ).first()
    if tree is None:
        raise NotFound(f"there is no tree {first.tree_id.hex()[:16]}")
    if first.epoch != tree.claim_epoch:
        raise Refused(
            f"claim {first.epoch} of tree {first.tree_id.hex()[:12]} is not in force",
            Reason.STALE_EPOCH,
        )
    if tree.state != GROWING:
        raise Refused(f"tree {first.tree_id.hex()[:12]} grows no more", Reason.NOT_GROWING)


@dataclass(slots=True)
class Resolved:
    """Events with their blobs in place.

    events: the usable events
    unusable: events with a missing or wrong blob, and the reasons
    blobs: digest of the blob of each event that had one, by the `id()` of the event
    """

    events: list[Event] = field(default_factory=list)
    unusable: list[tuple[Event, str]] = field(default_factory=list)
    blobs: dict[int, bytes] = field(default_factory=dict)


def resolve(connection: Connection, events: Iterable[Event]) -> Resolved:
    """Return the events with their blobs in place.

    An event without a blob whose segment was ingested before is left out.
    """
    resolved = Resolved()
    for event in events:
        if not isinstance(event, LargeSegment):
            resolved.events.append(event)
        elif (data := _blob(connection, event)) is not None:
            try:
                whole = _whole(event, data)
            except InvalidInput as error:
                resolved.unusable.append((event, str(error)))
                continue
            resolved.events.append(whole)
            resolved.blobs[id(whole)] = event.message.blob
        elif not _is_known(connection, event):
            name = event.message.blob.hex()[:12]
            resolved.unusable.append((event, f"BLOB_MISSING: blob {name} is not in the store"))
    return resolved


def _blob(connection: Connection, event: LargeSegment) -> bytes | None:
    table = schema.blobs
    same = (table.c.digest == event.message.blob) & (table.c.tree_id == event.tree_id)
    return connection.scalar(select(table.c.data).where(same))


def _whole(event: LargeSegment, data: bytes) -> GrownSegment:
    name = f"blob {event.message.blob.hex()[:12]}"
    segment = tree_pb2.Segment()
    try:
        segment.ParseFromString(data)
    except DecodeError:
        raise InvalidInput(f"{name} is not a segment") from None
    stub = event.message.segment
    if (segment.id, segment.tree_id) != (stub.id, stub.tree_id):
        raise InvalidInput(f"{name} holds another segment than the message says")
    message = events_pb2.GrownSegment(segment=segment, claim_epoch=event.message.claim_epoch)
    return grown_segment(message, event.sequence, event.run_id)


def _is_known(connection: Connection, event: LargeSegment) -> bool:
    """Return True if the segment was stored, was refused under this claim, or waits."""
    segment, epoch = event.message.segment.id, event.message.claim_epoch
    stored, refused, parked = schema.segments, schema.refused, schema.parked
    if connection.execute(select(stored.c.n).where(stored.c.id == segment)).first() is not None:
        return True
    was_refused = select(refused.c.n).where(
        refused.c.tree_id == event.tree_id,
        refused.c.segment == segment,
        refused.c.epoch == epoch,
        refused.c.kind == "segment",
    )
    if connection.execute(was_refused).first() is not None:
        return True
    payloads = connection.scalars(
        select(parked.c.payload).where(
            parked.c.tree_id == event.tree_id, parked.c.kind == "segment"
        )
    )
    return any(
        events_pb2.GrownSegment.FromString(payload).segment.id == segment for payload in payloads
    )


def remove(connection: Connection, digests: Iterable[bytes]) -> None:
    """Remove blobs whose segments are ingested."""
    for chunk in chunks(digests):
        connection.execute(delete(schema.blobs).where(schema.blobs.c.digest.in_(chunk)))
