"""Repaired failures through all five services: scored, repaired in the tree, trained on."""

import sqlite3
from pathlib import Path

import pytest
import yaml

from banyan.segment import Kind, Origin
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import system
from tests.system.tiny import torch_recipe

STEPS, WIDTH = 2, 3
MENDING = """
from banyan.plugins import Repair, Scored

class Mend:
    '''Right is what holds a 7. What does not is right for its first half, and a 7 should follow.'''
    name, version = "mend", "1"
    def score(self, completion, row):
        if "7" in completion:
            return Scored(1.0)
        return Scored(0.0, {}, Repair(len(completion) // 2, "7", 2, 3))
"""


@pytest.mark.slow
async def test_failed_answers_are_repaired_and_trained_on(tmp_path: Path) -> None:
    folder = tmp_path / "recipe"
    data = torch_recipe(folder)
    (folder / "mending.py").write_text(MENDING)
    data["task"]["path"] = str(folder / "rows.jsonl")
    data |= {
        "generate": {
            "policy": "scope",
            "settings": {"width": WIDTH, "most": 2},
            "max_new_tokens": 12,
        },
        "filter": [{"name": "mending:Mend"}],
        "optimise": {"loss_settings": {"forced": {"teacher": "shaped"}}, "checkpoint_every": 1000},
        "control": {"groups_per_batch": 2},
        "budget": {"steps": STEPS, "minutes": 3.0},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(data))
    async with system(tmp_path / "state", {"PYTHONPATH": str(folder)}) as made:
        await made.create(yaml.safe_load((folder / "recipe.yaml").read_text()))
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "state" / "store.sqlite"
    assert audit(database, run.run_id, STEPS) == []
    with sqlite3.connect(database) as db:
        forced = db.execute(
            "select distinct kind, origin, text from segments where kind = ?", (int(Kind.FORCED),)
        ).fetchall()
        listed = db.execute(
            "select distinct n from (select count(*) n from leaves l join trees t on t.tree_id"
            " = l.tree_id "
            "join batch_trees b on b.tree_id = t.tree_id where l.listed group by t.tree_id)"
        ).fetchall()
        dropped = (
            "select count(*) from leaves l join batch_trees b on b.tree_id = l.tree_id where"
            " not l.listed and l.finished"
        )
        (left_out,) = db.execute(dropped).fetchone()
        published = db.execute("select published from policies where step > 0").fetchall()
    metrics = [events_pb2.PolicyPublished.FromString(data).metrics for (data,) in published]
    assert sum(step["repairs"] for step in metrics) >= left_out
    assert 0 < sum(step["repairs_taken"] for step in metrics) <= left_out
    assert forced == [(int(Kind.FORCED), int(Origin.TEACHER), "7")]
    assert listed == [(WIDTH,)] and left_out > 0, "a repair stands in the place of what failed"
