"""SIGSTOP of any process during a run: it is noticed and restarted, and the run finishes clean."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from services.supervisor.watch import Patience
from tests.faults.audit import audit
from tests.faults.harness import System, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED

pytestmark = pytest.mark.faults

SERVICES = ("rollout", "treestore", "learner", "nats", "verifier", "gateway")
STEPS = len(SERVICES) + 2


def _ready(made: System, service: str) -> bool:
    of_service = [c for c in made.supervisor.children.values() if c.service == service]
    return all(child.running and child.state == "ready" for child in of_service)


async def test_a_stopped_process_is_noticed_whichever_it_is(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    model = tiny_model(tmp_path / "model")
    stopped: dict[str, int] = {}
    async with system(tmp_path / "s", patience=Patience(every_s=0.5, misses=6)) as made:
        run_id = await made.create(recipe(model, budget={"steps": STEPS, "minutes": 5.0}))
        for step, service in enumerate(SERVICES, start=1):
            await made.reach(step)
            # Of one that it has not seen serve, the supervisor is patient for two minutes.
            await eventually(lambda name=service: _ready(made, name), 60.0)
            stopped[service] = made.pid(service)
            os.kill(stopped[service], signal.SIGSTOP)
        run = await made.finish()
        now = {child.service: child for child in made.supervisor.children.values()}
        logs = {service: child.log.read_text() for service, child in now.items()}
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert {service for service, log in logs.items() if "it hung and was ended" in log} == set(
        SERVICES
    )
    assert audit(tmp_path / "s" / "store.sqlite", run_id, STEPS, KILLED) == []
