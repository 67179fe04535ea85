"""A run whose scorers have weights, one of them 0 and one a penalty, with a verifier killed: the
oracle computes its rewards from the recipe, and every score and part is in the step's metrics.
"""

import json
import sqlite3
from pathlib import Path

import pytest

from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import recipe, system, tiny_model

pytestmark = pytest.mark.faults
STEPS = 3
SCORERS = [
    {"name": "number", "weight": 2.0},
    {"name": "length", "settings": {"most": 1}, "weight": -0.5},
    {"name": "regex", "settings": {"pattern": "[0-4]"}, "weight": 0.0},
    {"name": "format", "settings": {"tags": ["answer"]}, "weight": 0.25},
]


async def test_rewards_are_what_the_recipe_says(tmp_path: Path) -> None:
    data = recipe(
        tiny_model(tmp_path / "model"),
        filter=SCORERS,
        budget__steps=STEPS,
        eval__filter=[{"name": "number"}],
    )
    async with system(tmp_path / "s") as made:
        await made.create(data)
        await made.reach(1)
        await made.kill("verifier")
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "s" / "store.sqlite"
    assert audit(database, run.run_id, STEPS) == []
    with sqlite3.connect(database) as db:
        rewards = {value for (value,) in db.execute("select mean_reward from trees")}
        published = db.execute("select published from policies where step = 1").fetchone()[0]
        (stored,) = db.execute("select recipe_json from runs").fetchone()
        other = json.loads(stored)
        other["filter"][0]["weight"] = 3.0
        db.execute("update runs set recipe_json = ?", (json.dumps(other),))
    db.close()
    assert len(rewards) > 2, "they differ"
    metrics = events_pb2.PolicyPublished.FromString(published).metrics
    for scorer in SCORERS:
        assert {f"score/{scorer['name']}", f"score_std/{scorer['name']}"} <= metrics.keys()
    assert "part/length/characters" in metrics
    assert any("mean reward" in fault for fault in audit(database, run.run_id, STEPS)), (
        "the oracle reads the weights of the recipe"
    )
