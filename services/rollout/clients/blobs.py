"""Takes what is too large out of a message: the segment goes to the store as a blob, the message names its digest."""

import asyncio
import logging
from collections.abc import Callable

from banyan.digest import blake
from banyan.errors import PermanentError, TemporaryError
from banyan.v1 import events_pb2, tree_pb2
from services.chassis.messaging.bus import MAX_MESSAGE_BYTES
from services.rollout.clients.messages import Event
from services.rollout.ports import Store

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


def _nobody() -> None:
    return None


class Blobs:
    """The way of large segments to the store. `away` hears each time that the store took nothing."""

    def __init__(self, store: Store, away: Callable[[], None] = _nobody) -> None:
        self._store, self._away = store, away

    async def light(self, event: Event) -> Event:
        """The event, light enough for the log. What the store refuses stays out of it: the store will say what it lacks."""
        message = event.message
        if (
            not isinstance(message, events_pb2.SegmentsGrown)
            or message.ByteSize() <= MAX_MESSAGE_BYTES
        ):
            return event
        small = events_pb2.SegmentsGrown(
            run_id=message.run_id, node_id=message.node_id, plans=message.plans
        )
        for grown in message.segments:
            if (named := await self._named(grown)) is not None:
                small.segments.append(named)
        return Event(event.subject, small, event.msg_id, event.traceparent)

    async def _named(self, grown: events_pb2.GrownSegment) -> events_pb2.GrownSegment | None:
        if grown.ByteSize() <= MAX_MESSAGE_BYTES // 2:
            return grown
        segment, data = grown.segment, grown.segment.SerializeToString()
        while True:
            try:
                await self._store.put_blob(segment.tree_id, grown.claim_epoch, data)
            except TemporaryError as error:  # a store that is away is back-pressure, not loss
                log.warning("a blob of %d bytes waits: %s", len(data), error)
                self._away()
                await asyncio.sleep(_AGAIN_S)
            except PermanentError as error:
                log.error("the store refuses a blob of %d bytes: %s", len(data), error)
                return None
            else:
                stub = tree_pb2.Segment(id=segment.id, tree_id=segment.tree_id)
                return events_pb2.GrownSegment(
                    segment=stub, claim_epoch=grown.claim_epoch, blob=blake(data)
                )
