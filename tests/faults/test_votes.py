"""SIGKILL while groups are voted on: every leaf is scored once, a group by the same vote."""

import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import STEPS, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED

pytestmark = pytest.mark.faults

VOTE: dict[str, Any] = {
    "filter": [{"name": "majority", "settings": {"take": "last"}}],
    "eval__filter": [{"name": "number", "settings": {"take": "last"}}],
    "generate__trees": 3,
    "generate__settings": {"width": 3},
}


def votes(database: Path) -> dict[str, list[tuple[float, float, float]]]:
    """Return value, majority_ratio and label_hash of each leaf of a group."""
    joined = (
        "select t.group_id, s.state, s.value, s.parts, s.scorer from scores s join trees t on"
        " t.tree_id = s.tree_id "
        "where t.purpose = 1"
    )
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for group, state, value, parts, scorer in sqlite3.connect(database).execute(joined):
        assert (state, scorer) == (1, "majority")
        said = json.loads(parts)
        found[group].append((value, said["majority_ratio"], said.get("label_hash", -1.0)))
    return found


@pytest.mark.parametrize(
    "services", [("verifier",), ("rollout", "verifier", "treestore", "nats")], ids="-".join
)
async def test_all_leaves_of_a_group_have_one_vote(
    tmp_path: Path, services: tuple[str, ...]
) -> None:
    async with system(tmp_path / "s") as made:
        run_id = await made.create(recipe(tiny_model(tmp_path / "model"), **VOTE))
        for step, service in enumerate(services, start=1):
            await made.reach(step)
            await made.kill(service)
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "s" / "store.sqlite"
    assert audit(database, run_id, STEPS, KILLED) == []
    found = votes(database)
    assert len(found) >= 4 * STEPS
    for group, leaves in found.items():
        assert len(leaves) == 9 and len({vote[1:] for vote in leaves}) == 1, (group, leaves)
        ratio = leaves[0][1]
        assert sum(value for value, _, _ in leaves) == pytest.approx(9 * ratio), (group, leaves)
