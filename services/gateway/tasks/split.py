"""The held-out split: which rows are never trained on. A pure function of the rows and the task.

The rule: problems (all rows with one split key) are taken in order of BLAKE2b-256("banyan.problem.v1", key), and each
is held out whole if it still fits into round(holdout x rows) rows. Where none fits, although `holdout` is above 0 and
there are two problems, the one with the fewest rows is held out. So both sides are the same on every machine, and no
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
    """Both sides in the order of the rows given, and the digest that names the split."""

    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    digest: bytes


def split(rows: list[dict[str, Any]], task: Task) -> Split:
    """The split of a task's rows. Raises InvalidInput where nothing is left to train on."""
    places = [blake(b"banyan.problem.v1", split_key(row, task)) for row in rows]
    held = _held_out(Counter(places), round(task.holdout * len(rows))) if task.holdout else set()
    train = [row for row, place in zip(rows, places, strict=True) if place not in held]
    held_out = [row for row, place in zip(rows, places, strict=True) if place in held]
    if not train:
        raise InvalidInput(
            f"task {task.name} leaves no row to train on: {len(rows)} rows, holdout {task.holdout}"
        )
    return Split(train, held_out, _digest(train, held_out))


def _held_out(sizes: Counter[bytes], room: int) -> set[bytes]:
    if len(sizes) < 2:
        return set()
    held: set[bytes] = set()
    for place in sorted(sizes):
        if sizes[place] <= room and len(held) < len(sizes) - 1:
            held.add(place)
            room -= sizes[place]
    return held or {min(sizes, key=lambda place: (sizes[place], place))}


def _digest(train: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> bytes:
    sides = [b"".join(sorted(row_digest(row) for row in side)) for side in (train, held_out)]
    return blake(b"banyan.split.v1", packed(sides[0]), packed(sides[1]))
