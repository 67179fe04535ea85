"""Scores onto the log: those that are ready while the broker answers for others go out in one message."""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.digest import blake
from banyan.errors import BanyanError
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.batcher import Batcher
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.chunks import chunked

_MOST = 256  # scores of a message
_FRAME_BYTES = 8  # of a score in a message beside the score itself


@dataclass(frozen=True, slots=True)
class _Score:
    event: events_pb2.LeafScored
    msg_id: str
    traceparent: str


def _size(score: _Score) -> int:
    return score.event.ByteSize() + _FRAME_BYTES


class BusPublisher:
    """Publishes scores; a message holds those of one run, as many as it has room for."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._together = Batcher[_Score, None](self._send, _MOST)

    async def publish(self, scored: events_pb2.LeafScored, msg_id: str, traceparent: str) -> None:
        """Returns when the broker has it. Raises what the broker's answer was."""
        await self._together.ask(_Score(scored, msg_id, traceparent))

    async def _send(self, scores: Sequence[_Score]) -> list[BanyanError | None]:
        failed: dict[int, BanyanError] = {}
        for run_id in dict.fromkeys(score.event.run_id for score in scores):
            of_run = [score for score in scores if score.event.run_id == run_id]
            for part in chunked(of_run, _size, _MOST):
                try:
                    await self._publish(run_id, part)
                except BanyanError as error:
                    failed |= {id(score): error for score in part}
        return [failed.get(id(score)) for score in scores]

    async def _publish(self, run_id: str, scores: Sequence[_Score]) -> None:
        message = events_pb2.LeavesScored(scores=[score.event for score in scores])
        ids = sorted({score.msg_id for score in scores})
        traces = {score.traceparent for score in scores}
        msg_id = ids[0] if len(ids) == 1 else f"scores-{blake(*(i.encode() for i in ids)).hex()}"
        trace = traces.pop() if len(traces) == 1 else ""
        await self._bus.publish(
            subjects.lineage(run_id, "score"), message, msg_id, traceparent=trace
        )
