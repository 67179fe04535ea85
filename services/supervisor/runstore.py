"""The supervisor's client of the treestore: desired processes, progress, reports."""

import contextlib
import json
from typing import Any, TypeAlias

from banyan.errors import BanyanError, TemporaryError
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from services.chassis.rpc import rpc
from services.supervisor.child import Child

WATCH_S = 10.0
Progress: TypeAlias = tuple[int, ...]


class RunStore:
    """The treestore's RunStoreService at an address."""

    def __init__(self, address: str, secret: str) -> None:
        self._channel = rpc.channel(address, secret=secret)
        self._stub: Any = rs_grpc.RunStoreServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)

    async def desired(self, revision: int) -> rs.WatchDesiredResponse:
        """Return the processes that all runs want, once their revision changes or time is up."""
        request = rs.WatchDesiredRequest(revision=revision, deadline_ms=int(WATCH_S * 1000))
        answer: rs.WatchDesiredResponse = await rpc.call(
            self._stub.WatchDesired, request, WATCH_S + 10.0, 60.0
        )
        return answer

    async def recipe(self, run_id: str) -> dict[str, Any]:
        """Return the recipe of a run."""
        answer = await rpc.call(self._stub.ReadRun, rs.ReadRunRequest(run_id=run_id), 10.0, 30.0)
        recipe: dict[str, Any] = json.loads(answer.run.recipe_json)
        return recipe

    async def progress(self, run_id: str) -> Progress | None:
        """Return numbers that rise while a run makes progress; None without an answer."""
        with contextlib.suppress(BanyanError):
            request = rs.ReadProgressRequest(run_id=run_id)
            answer = await rpc.call(self._stub.ReadProgress, request, 2.0)
            evals = (number for e in answer.evals for number in (e.done, e.scored))
            return (answer.step, answer.batches, answer.samples.leaves, *evals)
        return None

    async def report(
        self, child: Child, event: rs.ProcessEvent.ValueType, patience_s: float = 0.0
    ) -> bool:
        """Report an event of a process.

        Return False if the store could not be reached and should be tried again.
        """
        ended = event in (rs.PROCESS_EVENT_EXITED, rs.PROCESS_EVENT_GIVEN_UP)
        request = rs.ReportProcessRequest(
            run_id=child.run_id,
            service=child.service,
            replica=child.replica,
            pid=child.pid,
            event=event,
            exit_status=child.last_status,
            detail=child.tail() if ended else "",
        )
        try:
            await rpc.call(self._stub.ReportProcess, request, 5.0, patience_s)
        except TemporaryError:
            return False
        except BanyanError:  # refused for good: the store has read the report
            return True
        return True
