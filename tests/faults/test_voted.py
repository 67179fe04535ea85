"""Voted evaluations through all five services: rows whose leaves vote, alike and by the head."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from banyan.segment import Kind
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from tests.faults.audit import audit
from tests.faults.harness import STEPS, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED

ROWS, WIDTH = 6, 9
IID = {"width": WIDTH, "weight": "head", "take": "last"}
OWN = {"policy": "recipe", "settings": {"keep": 1.0}, "weight": "head", "take": "last"}


def asking(folder: Path, votes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a short run on the scripted engine, whose head is sharp."""
    measured = {"samples": 0, "max_rows": ROWS, "votes": votes}
    number = [{"name": "number", "settings": {"take": "last"}}]
    return recipe(tiny_model(folder / "model"), eval=measured, filter=number, **changes)


def evaluations(made: rs.ReadProgressResponse) -> dict[str, rs.EvalProgress]:
    return {measured.label: measured for measured in made.evals}


@pytest.mark.slow
async def test_leaves_vote_alike_and_by_the_head(tmp_path: Path) -> None:
    async with system(tmp_path / "s") as made:
        run_id = await made.create(asking(tmp_path, IID))
        run = await made.finish()
        found = evaluations((await made.look()).progress)
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "s" / "store.sqlite"
    assert audit(database, run_id, STEPS) == []
    assert set(found) == {"before-greedy", "before-voted", "after-greedy", "after-voted"}
    for when in ("before", "after"):
        voted = found[f"{when}-voted"]
        assert (voted.groups, voted.done, voted.scored) == (ROWS, ROWS, ROWS * WIDTH)
        assert voted.votes.rows == voted.head_votes.rows == ROWS
        assert voted.votes.leaf_correct_sum == pytest.approx(voted.correct / WIDTH)
        assert voted.votes.leaf_value_sum == voted.head_votes.leaf_value_sum
        # The script's head knows the answer once it is begun, so no wrong one outweighs it.
        assert voted.head_votes.correct > voted.votes.leaf_correct_sum
        assert voted.head_votes.correct >= voted.votes.correct
        assert not found[f"{when}-greedy"].HasField("votes")
    assert scored(database) == {
        ("before-voted", "number,vote,head-vote"),
        ("after-voted", "number,vote,head-vote"),
        ("before-greedy", "number"),
        ("after-greedy", "number"),
        ("", "number"),
    }


def scored(database: Path) -> set[tuple[str, str]]:
    """Return each label with the scorers of its trees."""
    rows = sqlite3.connect(database).execute("select distinct label, scorers from trees")
    return {(label, ",".join(json.loads(names))) for label, names in rows}


@pytest.mark.slow
async def test_the_recipes_own_policy_says_where_the_head_is_read(tmp_path: Path) -> None:
    arrol = {"policy": "arrol", "settings": {"width": 8, "detect": 1}, "max_new_tokens": 6}
    data = asking(tmp_path, OWN, generate=arrol, budget={"steps": 1, "minutes": 3.0})
    async with system(tmp_path / "s") as made:
        run_id = await made.create(data)
        run = await made.finish()
        found = evaluations((await made.look()).progress)
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "s" / "store.sqlite"
    assert audit(database, run_id, 1) == []
    assert found["after-voted"].head_votes.rows == ROWS
    assert found["after-voted"].scored == 8 * ROWS, "with keep: 1 none is stopped"
    assert heard(database) == {1}, "only the tokens at which rollouts are judged have a score"


def heard(database: Path) -> set[int]:
    """Return how many tokens have the head's score, of the voted paths' segments that have any."""
    query = (
        "select signals from segments join trees using (tree_id)"
        " where label like '%-voted' and kind = ? and length(signals) > 0"
    )
    rows = sqlite3.connect(database).execute(query, (int(Kind.POLICY),))
    return {len(tree_pb2.TokenSignals.FromString(row).head) // 2 for (row,) in rows}


@pytest.mark.faults
async def test_votes_outlive_what_counts_and_stores_them(tmp_path: Path) -> None:
    async with system(tmp_path / "s") as made:
        run_id = await made.create(asking(tmp_path, IID | {"width": 12}))
        for service in ("verifier", "rollout", "treestore", "gateway"):
            await made.kill(service)
        run = await made.finish()
        found = evaluations((await made.look()).progress)
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(tmp_path / "s" / "store.sqlite", run_id, STEPS, KILLED) == []
    for when in ("before", "after"):
        assert found[f"{when}-voted"].votes.rows == found[f"{when}-voted"].head_votes.rows == ROWS
