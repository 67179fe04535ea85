"""The held-out split: the rows that are never trained on. A pure function of the rows and the task.

The rule: problems (all rows with one split key) are taken in order of
BLAKE2b-256("banyan.problem.v1", key), and each is held out whole if it still fits into
round(holdout x rows) rows. If none fits, although `holdout` is above 0 and there are two problems,
the one with the fewest rows is held out. So both sides are the same on every machine, and no
problem is on both.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from banyan.digest import blake, packed, row_digest
from banyan.errors import InvalidInput
from banyan.recipe import Task
from services.gateway.tasks.prompt import split_key


@dataclass(frozen=True, slots=True)
class Split:
    """Both sides in the order of the rows, and the digest that names the split."""

    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    digest: bytes


def split(rows: list[dict[str, Any]], task: Task) -> Split:
    """Return the split of a task's rows. Raise InvalidInput if nothing is left to train on."""
    problems = [blake(b"banyan.problem.v1", split_key(row, task)) for row in rows]
    chosen: set[bytes] = set()
    if task.holdout:
        chosen = _held_out(Counter(problems), round(task.holdout * len(rows)))
    train = [row for row, problem in zip(rows, problems, strict=True) if problem not in chosen]
    held_out = [row for row, problem in zip(rows, problems, strict=True) if problem in chosen]
    if not train:
        raise InvalidInput(
            f"task {task.name} leaves no row to train on: {len(rows)} rows, holdout {task.holdout}"
        )
    return Split(train, held_out, _digest(train, held_out))


def _held_out(sizes: Counter[bytes], capacity: int) -> set[bytes]:
    """Return the problems to hold out. `sizes`: rows by problem; `capacity`: rows to hold out."""
    if len(sizes) < 2:
        return set()
    chosen: set[bytes] = set()
    for problem in sorted(sizes):
        if sizes[problem] <= capacity and len(chosen) < len(sizes) - 1:
            chosen.add(problem)
            capacity -= sizes[problem]
    return chosen or {min(sizes, key=lambda problem: (sizes[problem], problem))}


def _digest(train: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> bytes:
    sides = [b"".join(sorted(row_digest(row) for row in side)) for side in (train, held_out)]
    return blake(b"banyan.split.v1", packed(sides[0]), packed(sides[1]))
