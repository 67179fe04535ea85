"""Blobs: segments that are too large for a message of the log (PROTOCOL 4). Each waits for the message that names it.

A blob goes once its segment is ingested, or its tree is over. Redeliveries of its message are then known by the segment.
"""

from collections.abc import AsyncIterator, Iterable

from google.protobuf.message import DecodeError
from sqlalchemy import Connection, delete, func, select

from banyan.digest import DIGEST_BYTES, blake
from banyan.errors import InvalidInput, NotFound, Refused, TemporaryError
from banyan.reasons import Reason
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.events.decode import grew
from services.treestore.events.events import Event, GrownSegment, Large
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.storage.sql import insert_ignore
from services.treestore.unit_of_work.load import chunks
from services.treestore.unit_of_work.rows import GROWING

_WAITING = 4  # blobs of the greatest size that a tree may have waiting
Bad = tuple[Event, str]


async def received(
    pieces: AsyncIterator[ts.PutBlobRequest], settings: Settings
) -> tuple[ts.PutBlobRequest, bytes]:
    """The head and the whole of an upload. Raises InvalidInput if it is not what it says, before it takes more room."""
    head: ts.PutBlobRequest | None = None
    data = bytearray()
    async for piece in pieces:
        if head is None:
            head = _checked(piece, settings)
        data += piece.chunk
        if len(data) > head.size:
            raise InvalidInput(
                f"blob {head.digest.hex()[:12]} has more than the {head.size} bytes that it was to have"
            )
    if head is None or len(data) != head.size or blake(bytes(data)) != head.digest:
        raise InvalidInput(
            f"a blob ended after {len(data)} bytes, or is not what its digest says; send it again"
        )
    return head, bytes(data)


def _checked(head: ts.PutBlobRequest, settings: Settings) -> ts.PutBlobRequest:
    if len(head.tree_id) != DIGEST_BYTES or len(head.digest) != DIGEST_BYTES:
        raise InvalidInput(
            f"a blob needs a tree id and a digest of {DIGEST_BYTES} bytes in its first piece"
        )
    if head.size > settings.blob_bytes:
        raise InvalidInput(
            f"a blob of {head.size} bytes is over the limit of {settings.blob_bytes}; use shorter segments"
        )
    return head


def put(
    connection: Connection, head: ts.PutBlobRequest, data: bytes, now_ms: int, settings: Settings
) -> None:
    """Stores a blob under a claim that is in force. The same again changes nothing."""
    _check_claim(connection, head)
    table = schema.blobs
    waiting = select(func.coalesce(func.sum(func.length(table.c.data)), 0)).where(
        table.c.tree_id == head.tree_id
    )
    if int(connection.scalar(waiting) or 0) + len(data) > _WAITING * settings.blob_bytes:
        raise TemporaryError(
            f"tree {head.tree_id.hex()[:12]} has too many blobs that no message named yet",
            reason=Reason.BLOBS_WAIT,
        )
    row: dict[str, object] = {
        "digest": head.digest,
        "tree_id": head.tree_id,
        "data": data,
        "stored_ms": now_ms,
    }
    insert_ignore(connection, table, [row])


def _check_claim(connection: Connection, head: ts.PutBlobRequest) -> None:
    trees = schema.trees
    tree = connection.execute(
        select(trees.c.state, trees.c.claim_epoch).where(trees.c.tree_id == head.tree_id)
    ).first()
    if tree is None:
        raise NotFound(f"there is no tree {head.tree_id.hex()[:16]}")
    if head.epoch != tree.claim_epoch:
        raise Refused(
            f"claim {head.epoch} of tree {head.tree_id.hex()[:12]} is not in force",
            Reason.STALE_EPOCH,
        )
    if tree.state != GROWING:
        raise Refused(f"tree {head.tree_id.hex()[:12]} grows no more", Reason.NOT_GROWING)


def resolve(
    connection: Connection, events: Iterable[Event]
) -> tuple[list[Event], list[Bad], dict[int, bytes]]:
    """The events with the blobs in place, those whose blob is missing or wrong, and the digest of each that had one.

    An event whose blob is gone because its segment was taken before is left out.
    """
    out: list[Event] = []
    bad: list[Bad] = []
    used: dict[int, bytes] = {}
    for event in events:
        if not isinstance(event, Large):
            out.append(event)
        elif (data := _blob(connection, event)) is not None:
            try:
                out.append(_whole(event, data))
                used[id(out[-1])] = event.message.blob
            except InvalidInput as error:
                bad.append((event, str(error)))
        elif not _known(connection, event):
            bad.append(
                (event, f"BLOB_MISSING: blob {event.message.blob.hex()[:12]} is not in the store")
            )
    return out, bad, used


def _blob(connection: Connection, event: Large) -> bytes | None:
    table = schema.blobs
    mine = (table.c.digest == event.message.blob) & (table.c.tree_id == event.tree_id)
    return connection.scalar(select(table.c.data).where(mine))


def _whole(event: Large, data: bytes) -> GrownSegment:
    segment = tree_pb2.Segment()
    try:
        segment.ParseFromString(data)
    except DecodeError:
        raise InvalidInput(f"blob {event.message.blob.hex()[:12]} is not a segment") from None
    stub = event.message.segment
    if (segment.id, segment.tree_id) != (stub.id, stub.tree_id):
        raise InvalidInput(
            f"blob {event.message.blob.hex()[:12]} holds another segment than the message says"
        )
    message = events_pb2.GrownSegment(segment=segment, claim_epoch=event.message.claim_epoch)
    return grew(event.run_id, message, event.sequence)


def _known(connection: Connection, event: Large) -> bool:
    """Whether the segment was stored, refused under this claim, or waits."""
    segment, epoch = event.message.segment.id, event.message.claim_epoch
    stored, refused, parked = schema.segments, schema.refused, schema.parked
    if connection.execute(select(stored.c.n).where(stored.c.id == segment)).first() is not None:
        return True
    mine = (
        (refused.c.tree_id == event.tree_id)
        & (refused.c.segment == segment)
        & (refused.c.epoch == epoch)
    )
    if (
        connection.execute(select(refused.c.n).where(mine, refused.c.kind == "segment")).first()
        is not None
    ):
        return True
    waits = select(parked.c.payload).where(
        parked.c.tree_id == event.tree_id, parked.c.kind == "segment"
    )
    payloads = connection.scalars(waits)
    return any(
        events_pb2.GrownSegment.FromString(payload).segment.id == segment for payload in payloads
    )


def spend(connection: Connection, digests: Iterable[bytes]) -> None:
    """Removes blobs whose segments are taken."""
    for chunk in chunks(digests):
        connection.execute(delete(schema.blobs).where(schema.blobs.c.digest.in_(chunk)))
