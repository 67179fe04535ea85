"""SIGKILL of any process during a run: it finishes, and nothing in the store is lost or doubled."""

from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import STEPS, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED, SUCCEEDED

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


async def test_an_undisturbed_run_is_clean(tmp_path: Path, model: Path) -> None:
    async with system(tmp_path / "s") as made:
        run_id = await made.create(recipe(model))
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(tmp_path / "s" / "store.sqlite", run_id, STEPS) == []


@pytest.mark.parametrize(
    "service", ["gateway", "rollout", "verifier", "treestore", "learner", "nats"]
)
async def test_a_killed_process_loses_nothing(tmp_path: Path, model: Path, service: str) -> None:
    async with system(tmp_path / "s") as made:
        run_id = await made.create(recipe(model))
        await made.reach(2)
        first = await made.kill(service)
        run = await made.finish()
        assert made.supervisor.children, first
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(tmp_path / "s" / "store.sqlite", run_id, STEPS, KILLED) == []


async def test_every_process_killed_once_in_one_run(tmp_path: Path, model: Path) -> None:
    async with system(tmp_path / "s") as made:
        run_id = await made.create(recipe(model, budget={"steps": 8, "minutes": 5.0}))
        for step, service in enumerate(
            ("rollout", "treestore", "learner", "nats", "verifier", "gateway"), start=1
        ):
            await made.reach(step)
            await made.kill(service)
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(tmp_path / "s" / "store.sqlite", run_id, 8, KILLED) == []


async def test_a_learner_killed_before_its_first_checkpoint_replays_every_batch(
    tmp_path: Path, model: Path
) -> None:
    async with system(tmp_path / "s") as made:
        run_id = await made.create(recipe(model, optimise__checkpoint_every=1000))
        await made.reach(3)
        await made.kill("learner")
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(tmp_path / "s" / "store.sqlite", run_id, STEPS, SUCCEEDED) == []
