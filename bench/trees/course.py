"""The course of one run of an arm: steps until its policy is right, or its tokens are spent."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bench.harness.curve import twice_at
from bench.trees.process import Counts, InProcess

LEAST = 0.9
GRID = 20_000  # sampled tokens between measurements
FEW, FAR = 128, 0.75  # rows that tell first whether a policy is far from `LEAST`, and what is far
Course = dict[str, Any]


def run(
    process: InProcess,
    cap: int,
    say: Callable[[str], None] = print,
    updated: Callable[[], None] = lambda: None,
    grid: int = GRID,
    few: int = FEW,
) -> Course:
    """Run a process until two measurements in a row are at least `LEAST`, or for `cap` tokens.

    Returns the measured points: accuracy, and all that was spent until then, evaluations apart;
    `seconds` are those of updates, growth and training. A policy that is far from there is measured
    on few rows, but for the last one.

    updated: called after each update
    grid: sampled tokens between measurements
    few: rows that tell whether a policy is far from there; 0 to measure on all rows each time
    """
    spent, points = Counts(), list[dict[str, Any]]()
    begun, number, updates_s, due = time.monotonic(), 0, 0.0, 0

    def measure() -> None:
        rows, accuracy = few, process.accuracy(few) if few else 0.0
        if not few or accuracy >= FAR or spent.sampled >= cap:
            rows, accuracy = process.recipe.eval.max_rows, process.accuracy()
        about = {"updates": number, "accuracy": accuracy, "rows": rows, "seconds": updates_s}
        points.append(about | asdict(spent))
        say(f"    {spent.sampled:>9,} tokens, {number} updates: {accuracy:.3f}")

    measure()
    while spent.sampled < cap:
        before = time.monotonic()
        spent.add(process.step(number))
        updates_s += time.monotonic() - before
        number += 1
        updated()
        if spent.sampled // grid > due or spent.sampled >= cap:
            due = spent.sampled // grid
            measure()
            if reached({"points": points}) is not None:
                break
    return {"points": points, "cap": cap, "took_s": time.monotonic() - begun}


def reached(course: Course, what: str = "sampled", least: float = LEAST) -> float | None:
    """Return what was spent at the first of two measurements in a row that are this accurate.

    None if there are no two.
    """
    points = course["points"]
    at = twice_at({number: point["accuracy"] for number, point in enumerate(points)}, least)
    return None if at is None else float(points[at][what])
