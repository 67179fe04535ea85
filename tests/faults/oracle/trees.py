"""Trees, groups and sums of a finished run: how each tree ended, and that all sums are right."""

import json
import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from banyan import digest
from banyan.v1 import tree_pb2
from tests.faults.oracle import votes
from tests.faults.oracle.allowed import Allowed
from tests.faults.oracle.lineage import CLOSED, CONSUMED, DROPPED, SCORED, short

TRAIN = tree_pb2.TREE_PURPOSE_TRAIN
_GROUP_CLOSED, _GROUP_CONSUMED, _GROUP_DROPPED = 2, 3, 4


def trees(db: sqlite3.Connection, run_id: str, allowed: Allowed) -> Iterator[str]:
    """Check that every opened tree is closed, consumed, or dropped for an allowed reason.

    Its own sums must be those of its rows.
    """
    given_up = _given_up(db, run_id)
    held = {
        row["tree_id"]
        for row in db.execute("select tree_id from batch_trees where run_id = ?", (run_id,))
    }
    for row in db.execute("select * from trees where run_id = ?", (run_id,)):
        name = f"tree {short(row['tree_id'])}"
        if row["state"] not in (CLOSED, CONSUMED, DROPPED):
            yield f"{name} is still in state {tree_pb2.TreeState.Name(row['state'])}"
        if (row["state"] == CONSUMED) != (row["tree_id"] in held):
            yield (
                f"{name} is in state {tree_pb2.TreeState.Name(row['state'])}, but in"
                f" {int(row['tree_id'] in held)} batches"
            )
        if (
            row["state"] == CLOSED and row["purpose"] == TRAIN
        ):  # no tree is opened that no batch can take any more
            yield f"{name} was never trained on"
        if (
            row["state"] == DROPPED
            and given_up.get(row["group_id"]) != row["reason"]
            and not _may(db, row, allowed)
        ):
            yield f"{name} was dropped: {row['reason'] or 'without a reason'}"
        if row["state"] in (CLOSED, CONSUMED):
            yield from _closed(db, row, name)
        spec = tree_pb2.TreeSpec.FromString(row["spec"])
        told = (
            spec.tree_id,
            spec.run_id,
            spec.group_id,
            spec.index,
            spec.purpose,
            spec.label,
            spec.row_digest,
        )
        names = ("tree_id", "run_id", "group_id", "tree_index", "purpose", "label", "row_digest")
        if told != tuple(row[key] for key in names):
            yield f"{name} is not what its spec says"


def _given_up(db: sqlite3.Connection, run_id: str) -> dict[str, str]:
    """Return the reasons of groups that batches dropped, by group."""
    rows = db.execute("select dropped from batches where run_id = ?", (run_id,))
    return {group: reason for row in rows for group, reason in json.loads(row["dropped"])}


def _may(db: sqlite3.Connection, row: sqlite3.Row, allowed: Allowed) -> bool:
    """Return True if the recipe or the caller allows the tree to be dropped for its reason."""
    (text,) = db.execute(
        "select recipe_json from runs where run_id = ?", (row["run_id"],)
    ).fetchone()
    control = json.loads(text)["control"]
    asked = {"REDUNDANT"} if control["redundancy"] else set()
    asked |= {"STALE"} if control["stale_groups"] == "drop" else set()
    return row["reason"] in asked or allowed.reason("dropped", row["reason"])


def _closed(db: sqlite3.Connection, row: sqlite3.Row, name: str) -> Iterator[str]:
    if row["grown_epoch"] != row["claim_epoch"]:
        yield f"{name} closed under epoch {row['grown_epoch']} of {row['claim_epoch']}"
    listed = db.execute(
        "select segment, end from leaves where tree_id = ? and listed order by segment, end",
        (row["tree_id"],),
    ).fetchall()
    if not listed or len(listed) != row["leaves"]:
        yield f"{name} lists {len(listed)} leaves, {row['leaves']} were grown"
    if row["grown_digest"] != digest.blake(
        *(leaf["segment"] + leaf["end"].to_bytes(4, "little") for leaf in listed)
    ):
        yield f"{name} lists other leaves than were grown"
    rewards = list(_rewards(db, row).values())
    if not _equal(row["mean_reward"], math.fsum(rewards) / len(rewards) if rewards else None):
        yield f"{name} has a mean reward of {row['mean_reward']}, its scores say {rewards}"
    sums = db.execute(
        "select count(*), coalesce(sum(length * (kind = ?)), 0), coalesce(sum(length * (kind ="
        " ?)), 0)"
        " from segments where tree_id = ?",
        (tree_pb2.SEGMENT_KIND_POLICY, tree_pb2.SEGMENT_KIND_PROMPT, row["tree_id"]),
    ).fetchone()
    told = (row["segments"], row["sampled_tokens"], row["prompt_tokens"])
    if told != tuple(sums):
        yield f"{name} counts {told} segments, sampled and prompt tokens, and has {tuple(sums)}"


def _rewards(db: sqlite3.Connection, row: sqlite3.Row) -> Mapping[tuple[bytes, int], float]:
    """Return the reward of each listed leaf with all its scores: their mean by the weights that the
    run's recipe names, which are not read from the tree.
    """
    weights = _weights(db, row)
    said: dict[tuple[bytes, int], list[tuple[float, float | None]]] = defaultdict(list)
    given = db.execute(
        "select s.segment, s.end, s.scorer, s.state, s.value from scores s join leaves l"
        " on l.tree_id = s.tree_id"
        " and l.segment = s.segment and l.end = s.end and l.listed where s.tree_id = ?",
        (row["tree_id"],),
    )
    for score in given:
        weight = weights.get(score["scorer"], 1.0)
        value = score["value"] if score["state"] == SCORED else None
        if weight:
            said[(score["segment"], score["end"])].append((weight, value))
    return {
        leaf: math.fsum(w * v for w, v in known) / math.fsum(w for w, _ in known if w > 0)
        for leaf, pairs in said.items()
        if len(known := [(w, v) for w, v in pairs if v is not None]) == len(pairs)
    }


def _weights(db: sqlite3.Connection, row: sqlite3.Row) -> dict[str, float]:
    (text,) = db.execute(
        "select recipe_json from runs where run_id = ?", (row["run_id"],)
    ).fetchone()
    recipe = json.loads(text)
    measured = recipe.get("eval", {}).get("filter") if row["label"] else None
    parts = measured or recipe.get("filter", ())
    return {**{part["name"]: part.get("weight", 1.0) for part in parts}, **votes.NO_WEIGHTS}


def _equal(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def groups(db: sqlite3.Connection, run_id: str) -> Iterator[str]:
    """Check that every group has all its trees, correct counts, and the state of its trees."""
    states = defaultdict(list)
    for row in db.execute(
        "select group_id, tree_index, state from trees where run_id = ?", (run_id,)
    ):
        states[row["group_id"]].append((row["tree_index"], row["state"]))
    for row in db.execute("select * from groups where run_id = ?", (run_id,)):
        members = states.pop(row["group_id"], [])
        ended = Counter(state for _, state in members)
        counts = (row["size"], row["opened"], row["done"], row["dropped"])
        found = (
            len(members),
            len(members),
            ended[CLOSED] + ended[CONSUMED] + ended[DROPPED],
            ended[DROPPED],
        )
        if counts != found or sorted(index for index, _ in members) != list(range(row["size"])):
            yield (
                f"group {row['group_id']} counts {counts} trees of size, opened, done and"
                f" dropped, and has {found}"
            )
        if row["state"] != _state(ended):
            yield f"group {row['group_id']} is in state {row['state']}, its trees in {dict(ended)}"
    for group_id in states:
        yield f"group {group_id} has trees and no row"
    labels = defaultdict(list)
    for row in db.execute(
        "select label, ordinal from groups where run_id = ? order by ordinal", (run_id,)
    ):
        labels[row["label"]].append(row["ordinal"])
    for label, ordinals in labels.items():
        if ordinals != list(range(len(ordinals))):
            yield f"groups {label or 'for training'!r} have the ordinals {ordinals}"


def _state(ended: Mapping[int, int]) -> int:
    if ended[CONSUMED]:
        return _GROUP_CONSUMED
    return _GROUP_CLOSED if ended[CLOSED] else _GROUP_DROPPED


def tallies(db: sqlite3.Connection, run_id: str) -> Iterator[str]:
    """Check the sums of each label, from which progress, curves and evaluations are made."""
    rows = {
        row["label"]: row for row in db.execute("select * from tallies where run_id = ?", (run_id,))
    }
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for tree in db.execute("select * from trees where run_id = ?", (run_id,)):
        if tree["closed_ms"] and tree["grown_epoch"]:
            found[tree["label"]].update(leaves=tree["leaves"])
        if tree["state"] in (CLOSED, CONSUMED):
            rewards = _rewards(db, tree).values()
            found[tree["label"]].update(
                scored=len(rewards),
                correct=sum(r >= 1 for r in rewards),
                reward_sum=math.fsum(rewards),
            )
            found[tree["label"]].update(votes.of_row(db, tree, _rewards(db, tree)))
    names = {_GROUP_CLOSED: "closed", _GROUP_CONSUMED: "consumed", _GROUP_DROPPED: "dropped"}
    for group in db.execute("select label, state from groups where run_id = ?", (run_id,)):
        found[group["label"]].update(["groups", "prefix", names.get(group["state"], "open")])
    dropped = {
        row[0]
        for row in db.execute(
            "select distinct label from trees where run_id = ? and state = ?", (run_id, DROPPED)
        )
    }
    for label in found.keys() | rows.keys():
        keys = ["groups", "prefix", "open", "closed", "consumed", "dropped"]
        keys += (
            []
            if label in dropped
            else ["leaves", "scored", "correct", "reward_sum", *votes.COLUMNS]
        )  # a tree may be dropped after it counted
        for key in keys:
            told = rows[label][key] if label in rows else None
            if not _equal(told, found[label][key]):
                yield (
                    f"tally of {label or 'training'!r} has {key} {told}, the rows say"
                    f" {found[label][key]}"
                )
