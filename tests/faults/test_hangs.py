"""SIGSTOP of any process during a run: it is noticed and restarted, and the run finishes clean."""

import os
import signal
from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from services.supervisor.watch import Patience
from tests.faults.audit import audit
from tests.faults.harness import recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED

pytestmark = pytest.mark.faults

SERVICES = ("rollout", "treestore", "learner", "nats", "verifier", "gateway")
STEPS = len(SERVICES) + 2


async def test_a_stopped_process_is_noticed_whichever_it_is(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    stopped: dict[str, int] = {}
    async with system(tmp_path / "s", patience=Patience(every_s=0.5, misses=6)) as made:
        run_id = await made.create(recipe(model, budget={"steps": STEPS, "minutes": 5.0}))
        for step, service in enumerate(SERVICES, start=1):
            await made.reach(step)
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
