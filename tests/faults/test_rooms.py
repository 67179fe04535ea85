"""Growth budgets: the budget of every block is spent and never exceeded, also under kills."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import STEPS, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED, NOTHING, Allowed

pytestmark = pytest.mark.faults

BLOCK, ROLLOUTS = 4, 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def by_rooms(model: Path, **changes: Any) -> dict[str, Any]:
    rooms = {"rooms": "xrpo", "rooms_settings": {"rollouts": ROLLOUTS, "phases": 3, "bonus": 0.02}}
    return recipe(
        model,
        generate={"policy": "rounds", "settings": {"start": 2, "most": 12}, "max_new_tokens": 6},
        control={"groups_per_batch": BLOCK, "max_staleness": 0, **rooms},
        **changes,
    )


def leaves_of(database: Path) -> dict[int, int]:
    """Return the leaves of each grown training group, by ordinal; each has used its budget."""
    rows = sqlite3.connect(database).execute(
        "select g.ordinal, t.leaves, r.leaves, r.final, t.reason from trees t join groups g on"
        " g.group_id = t.group_id "
        "join rooms r on r.tree_id = t.tree_id where t.purpose = 1"
    )
    found = {
        ordinal: (grown, given, final)
        for ordinal, grown, given, final, reason in rows
        if not reason
    }
    assert found and all(grown == given and final for grown, given, final in found.values()), found
    return {ordinal: grown for ordinal, (grown, _, _) in found.items()}


def check(state: Path, run: rs.Run, allowed: Allowed = NOTHING) -> None:
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(state / "store.sqlite", run.run_id, STEPS, allowed) == []
    leaves = leaves_of(state / "store.sqlite")
    blocks = [
        [leaves.get(o, 0) for o in range(b, b + BLOCK)] for b in range(0, BLOCK * STEPS, BLOCK)
    ]
    assert [sum(block) for block in blocks] == [BLOCK * ROLLOUTS] * STEPS, blocks
    assert any(len(set(block)) > 1 for block in blocks), "some prompts got more than others"


@pytest.mark.parametrize("service", ["", "gateway", "rollout", "treestore"])
async def test_the_budget_is_spent_whoever_is_killed(
    tmp_path: Path, model: Path, service: str
) -> None:
    async with system(tmp_path / "s") as made:
        await made.create(by_rooms(model))
        if service:
            await made.reach(1)
            await made.kill(service)
            await made.reach(3)
            await made.kill(service)
        run = await made.finish()
    check(tmp_path / "s", run, KILLED if service else NOTHING)


async def test_a_deterministic_run_repeats(tmp_path: Path, model: Path) -> None:
    found = []
    for name in ("a", "b"):
        async with system(tmp_path / name) as made:
            await made.create(by_rooms(model, deterministic=True))
            run = await made.finish()
        check(tmp_path / name, run)
        database = sqlite3.connect(tmp_path / name / "store.sqlite")
        found.append(set(database.execute("select id from segments")))
    assert found[0] == found[1]
