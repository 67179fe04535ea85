"""Scores onto the log: those that are ready while the broker answers for others go out in one message."""

import asyncio
from collections.abc import Sequence

from banyan.digest import blake
from banyan.v1 import events_pb2
from services.chassis import subjects
from services.chassis.bus import Bus

_MOST = 256  # scores of a message
_Waiting = tuple[events_pb2.LeafScored, str, str, asyncio.Future[None]]


class BusPublisher:
    """Publishes scores. What waits is bounded by who calls: each call returns when the broker has its score."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None

    async def publish(self, scored: events_pb2.LeafScored, msg_id: str, traceparent: str) -> None:
        """Returns when the broker has it. Raises what the broker's answer was."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((scored, msg_id, traceparent, done))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        await done

    async def _send(self) -> None:
        while self._waiting:
            run_id = self._waiting[0][0].run_id
            part = [w for w in self._waiting if w[0].run_id == run_id][:_MOST]
            taken = {id(w) for w in part}
            self._waiting = [w for w in self._waiting if id(w) not in taken]
            await self._together(run_id, part)

    async def _together(self, run_id: str, part: Sequence[_Waiting]) -> None:
        message = events_pb2.LeavesScored(scores=[scored for scored, *_ in part])
        ids = sorted({msg_id for _, msg_id, *_ in part})
        traces = {traceparent for _, _, traceparent, _ in part}
        msg_id = ids[0] if len(ids) == 1 else f"scores-{blake(*(i.encode() for i in ids)).hex()}"
        trace = traces.pop() if len(traces) == 1 else ""
        error: BaseException | None = None
        try:
            await self._bus.publish(subjects.lineage(run_id, "score"), message, msg_id, traceparent=trace)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception):
                raise
        finally:
            for *_, done in part:
                if not done.done():
                    done.set_result(None) if error is None else done.set_exception(error)
