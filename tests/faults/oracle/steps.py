"""Batches and policies of a finished run: the trees of each batch, one path of policies."""

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from banyan.v1 import events_pb2
from tests.faults.oracle.allowed import Allowed
from tests.faults.oracle.lineage import CONSUMED, short

_SUCCEEDED = 5


def run(db: sqlite3.Connection, run_id: str, steps: int, allowed: Allowed) -> Iterator[str]:
    """Check the run's own row against its batches and policies."""
    found = db.execute("select * from runs where run_id = ?", (run_id,)).fetchone()
    if found is None:
        yield f"there is no run {run_id}"
        return
    if (found["state"], found["step"], found["batches"]) != (_SUCCEEDED, steps, steps):
        yield (
            f"the run is in state {found['state']} at step {found['step']} with"
            f" {found['batches']} batches"
        )
    if found["learner_epoch"] != 1 and not allowed.successors:
        yield f"the run had {found['learner_epoch']} learners"


def batches(db: sqlite3.Connection, run_id: str, steps: int) -> Iterator[str]:
    """Check that there are as many batches as steps, without gaps.

    Each must have every tree of its groups, and a tree must not be in two.
    """
    rows = db.execute(
        "select * from batches where run_id = ? order by ordinal", (run_id,)
    ).fetchall()
    ordinals = [row["ordinal"] for row in rows]
    if ordinals != list(range(steps)):
        yield f"batches {ordinals}, expected 0..{steps - 1}"
    epochs = [row["learner_epoch"] for row in rows]
    if epochs != sorted(epochs):
        yield f"batches were committed by epochs {epochs}"
    taken = [group for row in rows for group in json.loads(row["group_ids"])]
    if len(taken) != len(set(taken)):
        yield f"groups are in two batches: {sorted(g for g in set(taken) if taken.count(g) > 1)}"
    for row in rows:
        yield from _trees(db, row)
        yield from _summary(row)
    yield from _uses(db, run_id)
    yield from _replays(db, run_id)


def _trees(db: sqlite3.Connection, batch: sqlite3.Row) -> Iterator[str]:
    held = [
        row["tree_id"]
        for row in db.execute(
            "select tree_id from batch_trees where run_id = ? and ordinal = ? order by n",
            (batch["run_id"], batch["ordinal"]),
        )
    ]
    wanted: list[bytes] = []
    for group_id in json.loads(batch["group_ids"]):
        mine = db.execute(
            "select tree_id from trees where run_id = ? and group_id = ? and state = ? order"
            " by tree_index",
            (batch["run_id"], group_id, CONSUMED),
        ).fetchall()
        if not mine:
            yield f"batch {batch['ordinal']} took group {group_id}, which has no consumed tree"
        wanted += [row["tree_id"] for row in mine]
    if held != wanted:
        lost, more = set(wanted) - set(held), set(held) - set(wanted)
        yield (
            f"batch {batch['ordinal']} lacks trees {[*map(short, lost)]}, has"
            f" {[*map(short, more)]} too, or not in order"
        )
    late = db.execute(
        "select s.policy_step from batch_trees b join segments s on s.tree_id = b.tree_id"
        " where b.run_id = ? and b.ordinal = ? and s.policy_step > b.ordinal",
        (batch["run_id"], batch["ordinal"]),
    ).fetchone()
    if late is not None:
        yield (
            f"batch {batch['ordinal']} has what step {late['policy_step']} sampled, which was"
            " made of a later one"
        )


def _summary(batch: sqlite3.Row) -> Iterator[str]:
    """Check the learner's summary of a batch: each of its groups, with finite advantages."""
    try:
        said: Mapping[str, Any] = json.loads(batch["summary_json"])
        groups: Sequence[Mapping[str, Any]] = said["groups"]
    except (ValueError, KeyError):
        yield f"batch {batch['ordinal']} has no summary"
        return
    missing = set(json.loads(batch["group_ids"])) - {group["group_id"] for group in groups}
    if missing:
        yield f"the summary of batch {batch['ordinal']} lacks groups {sorted(missing)}"
    for group in groups:
        numbers = [group.get(key) for key in ("advantage_min", "advantage_max")]
        if group.get("scored") and not all(
            isinstance(n, float) and math.isfinite(n) for n in numbers
        ):
            yield f"batch {batch['ordinal']} gave group {group['group_id']} advantages {numbers}"


def _uses(db: sqlite3.Connection, run_id: str) -> Iterator[str]:
    uses = db.execute(
        "select tree_id, count(*) times from batch_trees where run_id = ? group by tree_id",
        (run_id,),
    )
    for row in uses:
        if row["times"] > 1:
            yield f"tree {short(row['tree_id'])} is in {row['times']} batches"


def _replays(db: sqlite3.Connection, run_id: str) -> Iterator[str]:
    early = db.execute(
        "select r.tree_id, r.ordinal from batch_replays r left join batch_trees b on b.tree_id"
        " = r.tree_id and"
        " b.run_id = r.run_id and b.ordinal < r.ordinal where r.run_id = ? and b.n is null",
        (run_id,),
    )
    for row in early:
        yield (
            f"batch {row['ordinal']} replays tree {short(row['tree_id'])}, which none before it had"
        )


def policies(db: sqlite3.Connection, run_id: str, steps: int, allowed: Allowed) -> Iterator[str]:
    """Check that there is one path of policies from the base model to the last, as announced."""
    rows = db.execute("select * from policies where run_id = ? order by n", (run_id,)).fetchall()
    for row in rows:
        yield from _announced(row)
        if row["abandoned"] and not allowed.successors:
            yield f"policy {row['step']} of epoch {row['learner_epoch']} was abandoned"
    path = sorted(
        (row for row in rows if not row["abandoned"]),
        key=lambda row: (row["step"], row["learner_epoch"]),
    )
    newest = {row["step"]: row for row in path}
    if list(newest) != list(range(steps + 1)):
        yield f"policies of steps {list(newest)}, expected 0..{steps}"
    for row in path:  # who takes over announces its checkpoint's policy again
        if row["digest"] != newest[row["step"]]["digest"]:
            yield (
                f"policy {row['step']} of epoch {row['learner_epoch']} has other weights than"
                " its successor's"
            )
    trained = [row["batch_ordinal"] for step, row in newest.items() if step > 0]
    if trained != list(range(steps)):
        yield f"steps were made from batches {trained}"
    epochs = [row["learner_epoch"] for row in path]
    if epochs != sorted(epochs):
        yield f"learner epochs go back: {epochs}"
    told = [(row["learner_epoch"], row["step"]) for row in rows]
    if told != sorted(told):
        yield f"policies were stored as {told}: a step or an epoch goes back"


def _announced(row: sqlite3.Row) -> Iterator[str]:
    said = events_pb2.PolicyPublished.FromString(row["published"])
    batch = said.batch_ordinal if said.HasField("batch_ordinal") else -1
    told = (said.run_id, said.policy.learner_epoch, said.policy.step, said.policy.digest, batch)
    stored = tuple(
        row[key] for key in ("run_id", "learner_epoch", "step", "digest", "batch_ordinal")
    )
    if told != stored or len(row["digest"]) != 32:
        yield (
            f"policy {row['step']} of epoch {row['learner_epoch']} and digest"
            f" {short(row['digest'])} is not what was told"
        )
