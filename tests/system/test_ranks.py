"""A run whose learner has two ranks: one of them dies, and the run succeeds nevertheless."""

import os
import signal
from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import STEPS, System, recipe, system, tiny_model
from tests.faults.oracle.allowed import SUCCEEDED

pytestmark = pytest.mark.slow


def follower(made: System) -> int:
    """Return the pid of the rank that the learner's process has started."""
    tasks = Path(f"/proc/{made.pid('learner')}/task").glob("*/children")
    (pid,) = [int(child) for path in tasks for child in path.read_text().split()]
    return pid


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
async def test_a_run_with_two_ranks_succeeds_though_one_dies(
    tmp_path: Path, lora: dict[str, int] | None
) -> None:
    async with system(tmp_path / "s") as made:
        changes = {"resources__learner_ranks": 2, "optimise__lora": lora}
        run_id = await made.create(recipe(tiny_model(tmp_path / "model"), **changes))
        await made.reach(2)
        os.kill(follower(made), signal.SIGKILL)
        run = await made.finish()
        (log,) = (tmp_path / "s").rglob(f"learner-{run_id}-0.log")
        assert "rank 1 of this learner ended by SIGKILL" in log.read_text()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(tmp_path / "s" / "store.sqlite", run_id, STEPS, SUCCEEDED) == []
