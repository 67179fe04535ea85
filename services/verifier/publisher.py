"""Scores onto the log: those that are ready while the broker answers for others go out in one message."""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.digest import blake
from banyan.errors import BanyanError
from banyan.v1 import events_pb2
from services.chassis import subjects
from services.chassis.bus import Bus
from services.chassis.together import Together

_MOST = 256  # scores of a message


@dataclass(frozen=True, slots=True)
class _Score:
    event: events_pb2.LeafScored
    msg_id: str
    traceparent: str


class BusPublisher:
    """Publishes scores; a message holds those of one run."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._together = Together[_Score, None](self._send, _MOST)

    async def publish(self, scored: events_pb2.LeafScored, msg_id: str, traceparent: str) -> None:
        """Returns when the broker has it. Raises what the broker's answer was."""
        await self._together.ask(_Score(scored, msg_id, traceparent))

    async def _send(self, scores: Sequence[_Score]) -> list[BanyanError | None]:
        ends: dict[str, BanyanError | None] = {}
        for run_id in dict.fromkeys(score.event.run_id for score in scores):
            try:
                await self._publish(run_id, [score for score in scores if score.event.run_id == run_id])
                ends[run_id] = None
            except BanyanError as error:
                ends[run_id] = error
        return [ends[score.event.run_id] for score in scores]

    async def _publish(self, run_id: str, scores: Sequence[_Score]) -> None:
        message = events_pb2.LeavesScored(scores=[score.event for score in scores])
        ids = sorted({score.msg_id for score in scores})
        traces = {score.traceparent for score in scores}
        msg_id = ids[0] if len(ids) == 1 else f"scores-{blake(*(i.encode() for i in ids)).hex()}"
        trace = traces.pop() if len(traces) == 1 else ""
        await self._bus.publish(subjects.lineage(run_id, "score"), message, msg_id, traceparent=trace)
