"""The publisher of scores: those that are ready within milliseconds share a message, as do those
that are while the broker answers.

Each message costs the store a transaction, and gateway and learner a look at what it closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.digest import blake
from banyan.errors import BanyanError
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.batcher import Batcher
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.chunks import chunked

_MAX_SCORES = 256  # of a message
_REST_S = 0.003
_FRAMING_BYTES = 8  # of a score in a message, beside the score itself


@dataclass(frozen=True, slots=True)
class _Score:
    event: events_pb2.LeafScored
    msg_id: str
    traceparent: str


def _size(score: _Score) -> int:
    return score.event.ByteSize() + _FRAMING_BYTES


class BusPublisher:
    """Publishes scores in messages of one run each, as large as a message may be."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._batcher = Batcher[_Score, None](self._send, _MAX_SCORES, _REST_S)

    async def publish(self, scored: events_pb2.LeafScored, msg_id: str, traceparent: str) -> None:
        """Publish a score; return once the broker has acknowledged it. Raise the broker's error."""
        await self._batcher.ask(_Score(scored, msg_id, traceparent))

    async def _send(self, scores: Sequence[_Score]) -> list[BanyanError | None]:
        errors: dict[int, BanyanError] = {}
        for run_id in dict.fromkeys(score.event.run_id for score in scores):
            scores_of_run = [score for score in scores if score.event.run_id == run_id]
            for chunk in chunked(scores_of_run, _size, _MAX_SCORES):
                try:
                    await self._publish(run_id, chunk)
                except BanyanError as error:
                    errors |= {id(score): error for score in chunk}
        return [errors.get(id(score)) for score in scores]

    async def _publish(self, run_id: str, scores: Sequence[_Score]) -> None:
        message = events_pb2.LeavesScored(scores=[score.event for score in scores])
        ids = sorted({score.msg_id for score in scores})
        joined_id = f"scores-{blake(*(msg_id.encode() for msg_id in ids)).hex()}"
        traces = {score.traceparent for score in scores}
        await self._bus.publish(
            subjects.lineage(run_id, "score"),
            message,
            ids[0] if len(ids) == 1 else joined_id,
            traceparent=traces.pop() if len(traces) == 1 else "",
        )
