"""Segments that are too large for a message: they go to the store as blobs.

The message then names the digest of the blob.
"""

import asyncio
import logging

from banyan.digest import blake
from banyan.errors import PermanentError, TemporaryError
from banyan.v1 import events_pb2, tree_pb2
from services.chassis.messaging.bus import MAX_MESSAGE_BYTES
from services.rollout.clients import away
from services.rollout.clients.away import Away
from services.rollout.clients.messages import Event
from services.rollout.ports import Store

log = logging.getLogger(__name__)

_RETRY_S = 1.0


class Blobs:
    """The sender of large segments.

    on_away: called after each try at which the store took nothing.
    """

    def __init__(self, store: Store, on_away: Away = away.ignore) -> None:
        self._store, self._on_away = store, on_away

    async def move_large_segments(self, event: Event) -> Event:
        """Return an event that is small enough for the log.

        A segment that the store refuses is left out: the store will report that it is missing.
        """
        message = event.message
        if not isinstance(message, events_pb2.SegmentsGrown):
            return event
        if message.ByteSize() <= MAX_MESSAGE_BYTES:
            return event
        light = events_pb2.SegmentsGrown(
            run_id=message.run_id, node_id=message.node_id, plans=message.plans
        )
        for grown in message.segments:
            if (named := await self._named(grown)) is not None:
                light.segments.append(named)
        return Event(event.subject, light, event.msg_id, event.traceparent)

    async def _named(self, grown: events_pb2.GrownSegment) -> events_pb2.GrownSegment | None:
        """Return a segment by the name of its blob, unless it is small; None if it is refused."""
        if grown.ByteSize() <= MAX_MESSAGE_BYTES // 2:
            return grown
        segment, data = grown.segment, grown.segment.SerializeToString()
        while True:
            try:
                await self._store.put_blob(segment.tree_id, grown.claim_epoch, data)
            except TemporaryError as error:  # a store that is away is back-pressure, not loss
                log.warning("a blob of %d bytes waits: %s", len(data), error)
                self._on_away()
                await asyncio.sleep(_RETRY_S)
            except PermanentError as error:
                log.error("the store refuses a blob of %d bytes: %s", len(data), error)
                return None
            else:
                stub = tree_pb2.Segment(id=segment.id, tree_id=segment.tree_id)
                return events_pb2.GrownSegment(
                    segment=stub, claim_epoch=grown.claim_epoch, blob=blake(data)
                )
