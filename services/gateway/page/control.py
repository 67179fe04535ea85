"""Changes that the page may make in a running system: to runs and to dead letters."""

import asyncio
import time
from pathlib import Path
from typing import Any, Protocol

import grpc.aio

from banyan.runtime import run_files
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from services.chassis.rpc import rpc

CANCELLED, PAUSED = "cancelled on the page", "paused on the page"
_PART_S = 20.0  # of one request; a large run takes several


class RunControl(Protocol):
    """The gateway's own answers to its users."""

    async def CancelRun(self, request: gw.CancelRunRequest, context: Any) -> gw.CancelRunResponse:
        """Cancel or pause a run. Raise Refused."""
        ...

    async def ResumeRun(self, request: gw.ResumeRunRequest, context: Any) -> gw.ResumeRunResponse:
        """Go on with a run. Raise Refused."""
        ...


class Control:
    """Changes by a person with the token.

    state: the state folder, which holds the files of runs
    """

    def __init__(self, gateway: RunControl, channel: grpc.aio.Channel, state: Path) -> None:
        self._gateway, self._state = gateway, state
        self._runs: Any = RunStoreServiceStub(channel)

    async def cancel(self, run_id: str, pause: bool) -> rs.Run:
        """Cancel or pause a run; return it."""
        cause = PAUSED if pause else CANCELLED
        request = gw.CancelRunRequest(run_id=run_id, pause=pause, cause=cause)
        return (await self._gateway.CancelRun(request, None)).run

    async def resume(self, run_id: str) -> rs.Run:
        """Go on with a run that is paused or has failed; return it."""
        request = gw.ResumeRunRequest(run_id=run_id, failed=True)
        return (await self._gateway.ResumeRun(request, None)).run

    async def remove(self, run: rs.Run) -> rs.RemoveRunResponse:
        """Remove a run that is over, with its files, for some time; ask again until `done`.

        Raise Refused for a run that may go on. A repetition continues what another one began.
        """
        end, rows = time.monotonic() + _PART_S, 0
        begin = rs.RemoveRunRequest(run_id=run.run_id, begin=True)
        await rpc.call(self._runs.RemoveRun, begin)
        await asyncio.to_thread(run_files.remove, self._state, run, True)
        while True:
            request = rs.RemoveRunRequest(run_id=run.run_id)
            answer = await rpc.call(self._runs.RemoveRun, request)
            rows += answer.rows
            if answer.done or time.monotonic() > end:
                return rs.RemoveRunResponse(done=answer.done, rows=rows)

    async def replay(self, number: int) -> None:
        """Publish the message of a dead letter again. Raise NotFound, or Refused."""
        await rpc.call(self._runs.ReplayDead, rs.ReplayDeadRequest(id=number))
