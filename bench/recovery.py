"""Recovery after the death of a process in the middle of a run.

A whole embedded system trains the arithmetic recipe on the scripted engine (steps of about a
second, a checkpoint every four). Each process in turn is killed (SIGKILL) right after a step was
recorded, and the time to the next recorded step is measured, minus the median of the undisturbed
steps. For the learner the replayed batches are reported, too: up to four.

`BENCH_RUNS` deaths of each, 5 by default. `BENCH_MODEL` names another model.
"""

import asyncio
import os
import signal
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from banyan.recipe_loader.load import load
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from bench.harness.compared import RECIPE
from bench.harness.table import Result, median
from services.chassis.rpc import rpc
from services.supervisor.embedded import embedded
from services.supervisor.supervisor import Supervisor

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
BARS_S = dict.fromkeys(("rollout", "verifier", "treestore", "gateway", "nats"), 8.0) | {
    "learner": 15.0
}
CHANGES = [
    "resources.engine=scripted",
    "resources.engine_settings={accuracy: 0.5, latency_s: 0.02}",
    "generate.settings={width: 4}",
    "generate.max_new_tokens=8",
    "optimise.checkpoint_every=4",
    "budget={steps: 100000, minutes: 60}",
    "eval.max_rows=2",
]
_LATEST_S = 180.0


def run() -> Result:
    """Measure seconds from the death of each process to the next step."""
    result = Result("recovery")
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, recoveries = asyncio.run(_measure(Path(folder) / "state"))
    result.add("a step that nothing disturbs", undisturbed, "s")
    for service, seconds in recoveries.items():
        figure = median(seconds)
        result.add(
            f"{service} killed: later than such a step",
            figure,
            "s",
            f"bar: at most {BARS_S[service]:g}",
        )
        result.notes.append(
            f"{service}: {', '.join(f'{value:.1f}' for value in sorted(seconds))} s"
        )
    result.notes.append(f"medians of {RUNS}, load {os.getloadavg()[0]:.1f} at the end")
    return result


async def _measure(state: Path) -> tuple[float, dict[str, list[float]]]:
    changes = [
        *CHANGES,
        *([f"model={os.environ['BENCH_MODEL']}"] if "BENCH_MODEL" in os.environ else []),
    ]
    async with embedded(state) as supervisor:
        channel = rpc.channel(
            supervisor.fleet.state.address("gateway"), secret=supervisor.fleet.state.secret
        )
        gateway: Any = gw_grpc.GatewayServiceStub(channel)
        request = gw.CreateRunRequest(
            recipe_json=load(RECIPE, changes).model_dump_json(), request_id=uuid.uuid4().hex
        )
        run_id = (await rpc.call(gateway.CreateRun, request, 60.0, 30.0)).run.run_id
        try:
            steps = Steps(supervisor, run_id)
            await steps.after(2)
            undisturbed = median([await steps.next() for _ in range(2 * RUNS)])
            recoveries: dict[str, list[float]] = {}
            for _ in range(RUNS):
                for service in BARS_S:
                    await steps.after(await steps.now() + 2)
                    _kill(supervisor, service)
                    recoveries.setdefault(service, []).append(await steps.next() - undisturbed)
                    print(f"  {service} {recoveries[service][-1]:.1f} s", flush=True)
            return undisturbed, recoveries
        finally:
            await channel.close(None)


class Steps:
    """Recorded steps of a run; no newer one while the store is away."""

    def __init__(self, supervisor: Supervisor, run_id: str) -> None:
        self._supervisor, self._run_id = supervisor, run_id

    async def now(self) -> int:
        """Return the newest step; wait for the store."""
        end = time.monotonic() + _LATEST_S
        while time.monotonic() < end:
            if (step := await self._read()) is not None:
                return step
            await asyncio.sleep(0.02)
        raise TimeoutError(f"the store said nothing for {_LATEST_S:.0f} s")

    async def _read(self) -> int | None:
        store = self._supervisor.store
        progress = await store.progress(self._run_id) if store is not None else None
        return progress[0] if progress is not None else None

    async def after(self, step: int) -> None:
        """Wait until a step is recorded."""
        end = time.monotonic() + _LATEST_S
        while await self.now() < step:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"step {step} was not made within {_LATEST_S:.0f} s; see "
                    f"{self._supervisor.fleet.state.path}"
                )
            await asyncio.sleep(0.02)

    async def next(self) -> float:
        """Return the seconds to the next step."""
        begun, step = time.monotonic(), await self.now()
        await self.after(step + 1)
        return time.monotonic() - begun


def _kill(supervisor: Supervisor, service: str) -> None:
    child = next(c for c in supervisor.children.values() if c.service == service and c.running)
    os.kill(child.pid, signal.SIGKILL)
