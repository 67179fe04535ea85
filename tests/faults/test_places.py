"""Rewards of places inside paths: such scores arrive, and a kill loses none of them."""

import json
import sqlite3
from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import recipe, system, tiny_model
from tests.faults.two_tasks import TwoTasks

pytestmark = pytest.mark.faults
HERE, STEPS = "tests.faults.two_tasks", 3


@pytest.mark.parametrize(
    ("advantage", "service"), [("sage-skill", "verifier"), ("mars2", "treestore")]
)
async def test_every_tree_waits_for_its_places(
    tmp_path: Path, advantage: str, service: str
) -> None:
    data = recipe(
        tiny_model(tmp_path / "model"),
        generate={"policy": f"{HERE}:TwoTasks", "max_new_tokens": 6},
        filter=[{"name": f"{HERE}:reward"}],
        optimise__advantage=advantage,
        budget__steps=STEPS,
    )
    async with system(tmp_path / "s") as made:
        await made.create(data)
        await made.reach(1)
        await made.kill(service)
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "s" / "store.sqlite"
    assert audit(database, run.run_id, STEPS) == []
    db = sqlite3.connect(database)
    (unscored,) = db.execute(
        "select count(*) from trees t join batch_trees b on b.tree_id = t.tree_id where"
        " (select count(*) from leaves l"
        " join scores s on s.tree_id = l.tree_id and s.segment = l.segment and s.end = l.end"
        " where l.tree_id = t.tree_id and not l.listed and s.state = 1) <> ?",
        (TwoTasks.width,),
    ).fetchone()
    assert unscored == 0, "a batch has trees whose places have no score"
    summaries = [json.loads(text) for (text,) in db.execute("select summary_json from batches")]
    db.close()
    applied = [
        group for one in summaries for group in one["groups"] if group.get("advantage_max", 0) > 0
    ]
    assert applied, "no group taught anything"
