"""A value head through all five services: trained, published with the weights, loaded by the node.

The score in the stored trees is the output of the learner's own head for its own state.
"""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan.segment import Finish, Kind
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import system
from tests.system.tiny import torch_recipe

pytestmark = pytest.mark.slow

STEPS, COLD, WIDTH, DETECT = 6, 2, 8, 3


def asking(folder: Path, dtype: str) -> dict[str, Any]:
    """Return a run with real weights whose rollouts are pruned by its head."""
    data = torch_recipe(folder)
    data["task"]["path"] = str(folder / "rows.jsonl")
    data["generate"] = {
        "policy": "arrol",
        "settings": {"width": WIDTH, "detect": DETECT},
        "max_new_tokens": 8,
    }
    data["control"] = {"groups_per_batch": 4, "max_staleness": 0}
    head = {"width": 16, "bins": 4, "window": 64, "cold_steps": COLD, "learning_rate": 1e-2}
    data["optimise"] = {"learning_rate": 1e-3, "checkpoint_every": 1000, "head": head}
    data["resources"]["dtype"] = dtype
    return data | {"budget": {"steps": STEPS, "minutes": 3.0}, "eval": {"samples": 0}}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 5e-3)])
async def test_the_score_in_the_stored_trees_is_that_of_the_learners_head(
    tmp_path: Path, dtype: str, tolerance: float
) -> None:
    data = asking(tmp_path / "recipe", dtype)
    async with system(tmp_path / "state", {"PYTHONPATH": str(tmp_path / "recipe")}) as made:
        await made.create(data)
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "state" / "store.sqlite"
    assert audit(database, run.run_id, STEPS) == []
    metrics, digests = _policies(database)
    trained = [m for _, m in sorted(metrics.items()) if "head_loss" in m]
    assert len(trained) >= STEPS - 1 and all(m["head_observations"] > 0 for m in trained)
    heard = _heard(database)
    assert heard.keys() <= {digests[step] for step in range(COLD, STEPS)}, (
        "cold heads are not heard"
    )
    scores = np.concatenate(list(heard.values()))
    assert (
        len(heard) >= 2 and scores.min() >= 0.0 and scores.max() <= 1.0 and scores.std() > 1e-2
    ), "it says something"
    gaps = [m["head_mismatch"] for m in trained if "head_mismatch" in m]
    assert len(gaps) >= 2 and max(gaps) < tolerance, gaps
    assert tolerance < 0.3 * scores.std(), (
        "a head that read another state, or another head, would be off by their spread"
    )


@pytest.mark.parametrize("own", [False, True], ids=["iid", "recipe"])
async def test_a_head_that_is_warm_weighs_votes_and_a_cold_one_has_none(
    tmp_path: Path, own: bool
) -> None:
    """Seen from the store: with `iid` each token is scored, with `arrol` those up to `detect`."""
    data = asking(tmp_path / "recipe", "float32")
    data["task"]["holdout"] = 0.2
    grown = {"policy": "recipe", "settings": {"keep": 1.0}} if own else {"width": WIDTH}
    votes = {"weight": "head", "extract": "text", **grown}
    data |= {"eval": {"samples": 0, "max_rows": 3, "votes": votes}}
    async with system(tmp_path / "state", {"PYTHONPATH": str(tmp_path / "recipe")}) as made:
        await made.create(data)
        run = await made.finish()
        found = {measured.label: measured for measured in (await made.look()).progress.evals}
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "state" / "store.sqlite"
    assert audit(database, run.run_id, STEPS) == []
    before, after = found["before-voted"], found["after-voted"]
    assert (before.votes.rows, after.votes.rows, after.head_votes.rows) == (3, 3, 3)
    assert not before.HasField("head_votes"), "a cold head says nothing"
    assert before.scored == after.scored == 3 * WIDTH
    scored = _scored(database, "after-voted")
    assert max(scored.values()) == (DETECT if own else 8)
    assert own or all(length == heard for length, heard in scored), "each token is heard"


def _scored(database: Path, label: str) -> dict[tuple[int, int], int]:
    """Return the scores of segments of an evaluation, by their tokens and scores."""
    query = (
        "select length, signals from segments join trees using (tree_id)"
        " where label = ? and kind = ?"
    )
    rows = sqlite3.connect(database).execute(query, (label, int(Kind.POLICY)))
    heard = [(n, len(tree_pb2.TokenSignals.FromString(data).head) // 2) for n, data in rows]
    return {pair: pair[1] for pair in heard}


def _policies(database: Path) -> tuple[dict[int, dict[str, float]], dict[int, bytes]]:
    """Return the metrics and weight digest of each step's policy."""
    rows = sqlite3.connect(database).execute("select published from policies where not abandoned")
    found = [events_pb2.PolicyPublished.FromString(row) for (row,) in rows]
    return {p.policy.step: dict(p.metrics) for p in found}, {
        p.policy.step: p.policy.digest for p in found
    }


def _heard(database: Path) -> dict[bytes, np.ndarray]:
    """Return by policy the head's outputs at the places where rollouts were judged."""
    query = (
        "select policy_digest, signals from segments where kind = ? and finish = ? and"
        " length(signals) > 0"
    )
    found: dict[bytes, list[float]] = {}
    for digest, signals in sqlite3.connect(database).execute(
        query, (int(Kind.POLICY), int(Finish.BOUNDARY))
    ):
        said = np.frombuffer(tree_pb2.TokenSignals.FromString(signals).head, "<f2")
        assert len(said) == DETECT
        found.setdefault(digest, []).append(float(said[-1]))
    return {digest: np.array(said) for digest, said in found.items()}
