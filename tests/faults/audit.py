"""The oracle of every fault test: reads the store's SQL after a run, never a log, and says all that is wrong."""

import json
import sqlite3
from pathlib import Path

import numpy as np

from banyan.segment import Finish, Kind, Origin, Segment
from banyan.v1 import tree_pb2
from banyan.wire import sampling_from_wire

CLOSED, CONSUMED, DROPPED = tree_pb2.TREE_STATE_CLOSED, tree_pb2.TREE_STATE_CONSUMED, tree_pb2.TREE_STATE_DROPPED


def audit(database: Path, run_id: str, steps: int) -> list[str]:
    """Everything that breaks a promise in the store of a finished run; empty if nothing does."""
    db = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        return [*_integrity(db), *_segments(db), *_trees(db, run_id), *_scores(db, run_id), *_batches(db, run_id, steps)]
    finally:
        db.close()


def _integrity(db: sqlite3.Connection) -> list[str]:
    (word,) = db.execute("pragma integrity_check").fetchone()
    return [] if word == "ok" else [f"database: {word}"]


def _segments(db: sqlite3.Connection) -> list[str]:
    """Every id re-hashes, every parent exists, no place is taken twice."""
    wrong = []
    for row in db.execute("select * from segments"):
        sampling = tree_pb2.SamplingParams.FromString(row["sampling"])
        segment = Segment(
            tree_id=row["tree_id"],
            parent=row["parent"],
            fork=row["fork"],
            ordinal=row["ordinal"],
            kind=Kind(row["kind"]),
            origin=Origin(row["origin"]),
            tokens_T=np.frombuffer(row["tokens"], "<i4"),
            logprobs_T=np.frombuffer(row["logprobs"], "<f4"),
            sampled_logprobs_T=np.frombuffer(row["sampled_logprobs"], "<f4"),
            policy=row["policy_digest"],
            sampling=sampling_from_wire(sampling),
            finish=Finish(row["finish"]),
        )
        if segment.id != row["id"]:
            wrong.append(f"segment {row['id'].hex()[:12]} does not re-hash")
    orphans = db.execute(
        "select s.id from segments s left join segments p on p.id = s.parent where s.parent != x'' and p.id is null"
    )
    wrong += [f"segment {row['id'].hex()[:12]} has no parent" for row in orphans]
    twice = db.execute("select count(*) times from segments group by tree_id, parent, fork, ordinal having times > 1")
    return wrong + [f"{row['times']} segments at one place" for row in twice]


def _trees(db: sqlite3.Connection, run_id: str) -> list[str]:
    """Every opened tree is closed, consumed, or dropped with a reason; trees that are open belong to no finished step."""
    wrong = []
    for row in db.execute("select * from trees where run_id = ?", (run_id,)):
        if row["state"] not in (CLOSED, CONSUMED, DROPPED):
            wrong.append(f"tree {row['tree_id'].hex()[:12]} is still in state {tree_pb2.TreeState.Name(row['state'])}")
        if row["state"] == DROPPED and not row["reason"]:
            wrong.append(f"tree {row['tree_id'].hex()[:12]} was dropped without a reason")
        if row["state"] in (CLOSED, CONSUMED) and row["grown_epoch"] != row["claim_epoch"]:
            wrong.append(f"tree {row['tree_id'].hex()[:12]} closed under epoch {row['grown_epoch']} of {row['claim_epoch']}")
    return wrong


def _scores(db: sqlite3.Connection, run_id: str) -> list[str]:
    """Every listed leaf of a closed tree has exactly one score per scorer."""
    rows = db.execute(
        "select t.tree_id, l.segment, l.end, t.scorers, count(s.n) given"
        " from trees t join leaves l on l.tree_id = t.tree_id and l.listed"
        " left join scores s on s.tree_id = l.tree_id and s.segment = l.segment and s.end = l.end"
        " where t.run_id = ? and t.state in (?, ?) group by l.n",
        (run_id, CLOSED, CONSUMED),
    )
    return [
        f"leaf {row['segment'].hex()[:12]}:{row['end']} has {row['given']} scores"
        for row in rows
        if row["given"] != len(json.loads(row["scorers"]))
    ]


def _batches(db: sqlite3.Connection, run_id: str, steps: int) -> list[str]:
    """As many batches as steps, gapless; no tree in two; one path of policies from the base model to the last."""
    wrong = []
    ordinals = [
        row["ordinal"] for row in db.execute("select ordinal from batches where run_id = ? order by ordinal", (run_id,))
    ]
    if ordinals != list(range(steps)):
        wrong.append(f"batches {ordinals}, expected 0..{steps - 1}")
    early = db.execute(
        "select r.tree_id, r.ordinal from batch_replays r left join batch_trees b on b.tree_id = r.tree_id and"
        " b.run_id = r.run_id and b.ordinal < r.ordinal where r.run_id = ? and b.n is null",
        (run_id,),
    )
    wrong += [f"batch {row['ordinal']} replays tree {row['tree_id'].hex()[:12]}, which none before it had" for row in early]
    uses = db.execute(
        "select tree_id, count(*) times from batch_trees where run_id = ? group by tree_id, use having times > 1", (run_id,)
    )
    wrong += [f"tree {row['tree_id'].hex()[:12]} is in {row['times']} batches" for row in uses]
    policies = db.execute(
        "select step, batch_ordinal, learner_epoch from policies"
        " where run_id = ? and not abandoned order by step, learner_epoch",
        (run_id,),
    ).fetchall()
    newest = {row["step"]: row["batch_ordinal"] for row in policies}
    if sorted(newest) != list(range(steps + 1)):
        wrong.append(f"policies of steps {sorted(newest)}, expected 0..{steps}")
    trained = [newest[step] for step in sorted(newest) if step > 0]
    if trained != list(range(steps)):
        wrong.append(f"steps were made from batches {trained}")
    epochs = [row["learner_epoch"] for row in policies]
    return wrong if epochs == sorted(epochs) else [*wrong, f"learner epochs go back: {epochs}"]
