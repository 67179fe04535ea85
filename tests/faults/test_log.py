"""Faults of the log: every message comes twice, or all of NATS is wiped between two starts."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import nats
import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import STEPS, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED, Allowed

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


async def _double(state: Path, address: str, doubled: list[str]) -> None:
    """Publish every message again under another id, so that the broker does not recognise it."""
    client = await nats.connect(
        f"nats://{address}", user_credentials=str(state / "nats" / "services.creds")
    )
    subscription = await client.subscribe(">")
    async for message in subscription.messages:
        if message.subject.split(".")[0] not in ("lineage", "growth", "train") or "Doubled" in (
            message.headers or {}
        ):
            continue
        headers = dict(message.headers or {}) | {
            "Nats-Msg-Id": f"again-{len(doubled)}",
            "Doubled": "1",
        }
        await client.publish(message.subject, message.data, headers=headers)
        doubled.append(message.subject)


async def test_every_message_twice_has_the_effect_of_once(tmp_path: Path, model: Path) -> None:
    doubled: list[str] = []
    async with system(tmp_path / "s") as made:
        doubler = asyncio.create_task(
            _double(tmp_path / "s", made.supervisor.fleet.state.address("nats"), doubled)
        )
        run_id = await made.create(recipe(model))
        run = await made.finish()
        doubler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await doubler
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    kinds = {subject.split(".")[-1] for subject in doubled}
    assert {"opened", "segment", "leaf", "grown", "score", "closed", "batch", "policy"} <= kinds
    twice_claimed = Allowed(
        refused=["STALE_EPOCH"]
    )  # an assignment that comes twice is claimed twice
    assert audit(tmp_path / "s" / "store.sqlite", run_id, STEPS, twice_claimed) == []


async def test_nats_wiped_while_nothing_runs_costs_nothing(tmp_path: Path, model: Path) -> None:
    state = tmp_path / "s"
    async with system(state) as made:
        run_id = await made.create(recipe(model))
        await made.reach(2)
    shutil.rmtree(state / "nats" / "jetstream")
    async with system(state) as again:
        again.run_id = run_id
        run = await again.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(state / "store.sqlite", run_id, STEPS, KILLED) == []
