"""Course of a run, step by step, read from its store (SQLite).

It has seconds, sampled tokens, metrics, held-out greedy accuracy. Evaluations lie between steps and
count as no step's time: a step begins when the policy before it is stored and has been measured.
"""

import itertools
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from banyan.v1 import events_pb2

_TRAIN, _EVAL, _POLICY = 1, 2, 2  # trees.purpose, segments.kind


@dataclass(frozen=True)
class Curve:
    """Course of a run.

    seconds, metrics: by step, from the first
    tokens: sampled until each policy, from policy 0
    accuracy: greedy accuracy by measured policy
    """

    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    accuracy: Mapping[int, float] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, float]] = field(default_factory=list)

    @property
    def measured_tokens(self) -> int:
        """Tokens until the newest measured policy."""
        return self.tokens[max(self.accuracy)] if self.accuracy else -1


def first_at(accuracy: Mapping[int, float], least: float) -> int | None:
    """Return the first measured policy that is this accurate."""
    return next((step for step in sorted(accuracy) if accuracy[step] >= least), None)


def twice_at(accuracy: Mapping[int, float], least: float) -> int | None:
    """Return the first of two measured policies in a row that are this accurate."""
    for first, second in itertools.pairwise(sorted(accuracy)):
        if min(accuracy[first], accuracy[second]) >= least:
            return first
    return None


def stays_from(accuracy: Mapping[int, float], least: float) -> int | None:
    """Return the first measured policy from which on all are this accurate; None if the last is
    not."""
    first = None
    for step in sorted(accuracy, reverse=True):
        if accuracy[step] < least:
            break
        first = step
    return first


def at_tokens(tokens: list[int], accuracy: Mapping[int, float], wanted: int) -> float | None:
    """Return the accuracy at a number of sampled tokens; None beyond the measured policies.

    It is on the line between the two measured policies around it.
    """
    points = [(tokens[step], accuracy[step]) for step in sorted(accuracy) if step < len(tokens)]
    for (t0, a0), (t1, a1) in itertools.pairwise(points):
        if t0 <= wanted <= t1:
            return a0 + (a1 - a0) * (wanted - t0) / (t1 - t0) if t1 > t0 else a1
    return None


def read(database: Path, run_id: str) -> Curve:
    """Return the run so far; an empty curve before its first policy."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        stored = db.execute(
            "select step, stored_ms, published from policies where run_id = ? and not abandoned "
            "order by step",
            (run_id,),
        ).fetchall()
        evals = db.execute(
            "select label, max(closed_ms), min(closed_ms) from trees where run_id = ? and purpose "
            "= ? group by label",
            (run_id, _EVAL),
        ).fetchall()
        mean_rewards = dict(
            db.execute(
                "select label, reward_sum / scored from tallies where run_id = ? and scored > 0 "
                "and groups = closed + dropped",
                (run_id,),
            ).fetchall()
        )
        tokens = [_sampled(db, run_id, at) for _, at, _ in stored]
    last = max((step for step, _, _ in stored), default=0)
    accuracy = {
        _step(label, last): mean_rewards[label]
        for label, _, first in evals
        if label.endswith("-greedy") and first and label in mean_rewards
    }
    over = [closed for _, closed, first in evals if first]
    seconds = [
        _seconds(before, after, over)
        for (_, before, _), (_, after, _) in itertools.pairwise(stored)
    ]
    metrics = [
        dict(events_pb2.PolicyPublished.FromString(data).metrics) for _, _, data in stored[1:]
    ]
    return Curve(seconds, tokens, accuracy, metrics)


def _seconds(before: int, after: int, over: list[int]) -> float:
    """Return the time from a policy, or the end of its evaluation, to the next policy."""
    return (after - max([before, *(at for at in over if before <= at < after)])) / 1000


def _sampled(db: sqlite3.Connection, run_id: str, until: int) -> int:
    rows = db.execute(
        "select sum(s.length) from segments s join trees t on t.tree_id = s.tree_id where t.run_id "
        "= ? and t.purpose = ? and s.kind = ? and s.stored_ms <= ?",
        (run_id, _TRAIN, _POLICY, until),
    ).fetchone()[0]
    return int(rows or 0)


def _step(label: str, last: int) -> int:
    """Return the policy that an evaluation measured."""
    when = label.removesuffix("-greedy")
    return (
        {"before": 0, "after": last}[when]
        if not when.startswith("step-")
        else int(when.removeprefix("step-"))
    )
