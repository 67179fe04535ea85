"""Segments, leaves and scores of a finished run, recomputed from the rows alone."""

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from banyan.errors import BanyanError
from banyan.segment import Finish, Kind, Origin, Segment
from banyan.v1 import tree_pb2
from banyan.wire import receipts
from banyan.wire.segments import sampling_from_wire
from tests.faults.oracle.allowed import Allowed

CLOSED, CONSUMED, DROPPED = (
    tree_pb2.TREE_STATE_CLOSED,
    tree_pb2.TREE_STATE_CONSUMED,
    tree_pb2.TREE_STATE_DROPPED,
)
SCORED, UNSCORABLE = tree_pb2.SCORE_STATE_SCORED, tree_pb2.SCORE_STATE_UNSCORABLE
_SAMPLED = tree_pb2.SEGMENT_KIND_POLICY


def short(key: bytes) -> str:
    return key.hex()[:12]


def segments(db: sqlite3.Connection) -> Iterator[str]:
    """Yield ids that do not re-hash, parents missing from the tree, places occupied twice."""
    for row in db.execute("select * from segments"):
        try:
            again = _segment(row).id
        except (BanyanError, ValueError) as error:
            yield f"segment {short(row['id'])} is none: {error}"
            continue
        if again != row["id"]:
            yield f"segment {short(row['id'])} does not re-hash"
        if row["length"] * 4 != len(row["tokens"]):
            yield (
                f"segment {short(row['id'])} has {len(row['tokens'])} bytes of tokens for a"
                f" length of {row['length']}"
            )
    heads = {
        row["id"]: row
        for row in db.execute("select id, tree_id, parent, fork, length from segments")
    }
    for head in heads.values():
        parent = heads.get(head["parent"])
        if head["parent"] and (parent is None or parent["tree_id"] != head["tree_id"]):
            yield f"segment {short(head['id'])} has no parent"
        elif parent is not None and head["fork"] > parent["length"]:
            yield (
                f"segment {short(head['id'])} forks at {head['fork']} of {parent['length']} tokens"
            )
    trees = {row["tree_id"] for row in db.execute("select tree_id from trees")}
    for head in heads.values():
        if head["tree_id"] not in trees:
            yield f"segment {short(head['id'])} is of no tree"
    for row in db.execute(
        "select count(*) times from segments group by tree_id, parent, fork, ordinal having"
        " times > 1"
    ):
        yield f"{row['times']} segments at one place"


def _segment(row: sqlite3.Row) -> Segment:
    return Segment(
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
        sampling=sampling_from_wire(tree_pb2.SamplingParams.FromString(row["sampling"])),
        finish=Finish(row["finish"]),
        receipt=receipts.from_wire(tree_pb2.Receipt.FromString(row["receipt"]))
        if row["receipt"]
        else None,
    )


def samples(db: sqlite3.Connection, run_id: str) -> Iterator[str]:
    """Yield samples whose policy the run did not store, by epoch, step and digest."""
    wanted = "select learner_epoch, step, digest from policies where run_id = ?"
    known = {tuple(row) for row in db.execute(wanted, (run_id,))}
    rows = db.execute(
        "select s.id, s.policy_epoch, s.policy_step, s.policy_digest from segments s"
        " join trees t on t.tree_id = s.tree_id where t.run_id = ? and s.kind = ?",
        (run_id, _SAMPLED),
    )
    for row in rows:
        if tuple(row)[1:] not in known:
            yield (
                f"segment {short(row['id'])} was sampled by step {row['policy_step']} of no"
                " stored policy"
            )


def leaves(db: sqlite3.Connection) -> Iterator[str]:
    """Yield leaves that do not end within a segment of their tree."""
    rows = db.execute(
        "select l.segment, l.end from leaves l left join segments s on s.id = l.segment and"
        " s.tree_id = l.tree_id"
        " where s.id is null or l.end > s.length or l.end < 0"
    )
    for row in rows:
        yield f"leaf {short(row['segment'])}:{row['end']} ends in no segment of its tree"


def scores(db: sqlite3.Connection, run_id: str, allowed: Allowed) -> Iterator[str]:
    """Yield leaves of closed trees without exactly one score per scorer, and scores without a
    number.
    """
    yield from _given(db, run_id)
    rows = db.execute(
        "select s.* from scores s join trees t on t.tree_id = s.tree_id where t.run_id = ?",
        (run_id,),
    )
    for row in rows:
        at = f"score of {short(row['segment'])}:{row['end']} by {row['scorer']}"
        if row["state"] not in (SCORED, UNSCORABLE):
            yield f"{at} is in state {row['state']}"
        elif row["state"] == UNSCORABLE and not allowed.reason("unscorable", row["reason"]):
            yield f"{at} is UNSCORABLE: {row['reason'] or 'without a reason'}"
        elif row["state"] == SCORED and not math.isfinite(row["value"]):
            yield f"{at} is {row['value']}"
    rows = db.execute(
        "select c.segment, c.end from scores c left join segments s on s.id = c.segment and"
        " s.tree_id = c.tree_id"
        " where s.id is null or c.end > s.length"
    )
    for row in rows:
        yield f"score of {short(row['segment'])}:{row['end']} is at no place of its tree"


def _given(db: sqlite3.Connection, run_id: str) -> Iterator[str]:
    given = defaultdict(list)
    for row in db.execute("select tree_id, segment, end, scorer from scores"):
        given[(row["tree_id"], row["segment"], row["end"])].append(row["scorer"])
    rows = db.execute(
        "select t.tree_id, l.segment, l.end, t.scorers from trees t join leaves l on l.tree_id"
        " = t.tree_id and l.listed"
        " where t.run_id = ? and t.state in (?, ?)",
        (run_id, CLOSED, CONSUMED),
    )
    for row in rows:
        found, asked = (
            given[(row["tree_id"], row["segment"], row["end"])],
            json.loads(row["scorers"]),
        )
        if sorted(found) != sorted(asked):
            yield (
                f"leaf {short(row['segment'])}:{row['end']} has scores of {sorted(found)},"
                f" asked were {sorted(asked)}"
            )
