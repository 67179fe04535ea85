"""What the cells say: the variant that is TRL's best, ratios, and seconds to an accuracy. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.curve import first_at
from bench.table import Result, median

BARS = {"same-work": 3.0, "as-shipped": 4.0, "learning": 4.0}
GOAL = 0.9
Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Reached:
    """When a run first was as accurate as asked, its training's seconds until then, and its accuracy at the end."""

    step: int | None
    seconds: float | None
    final: float


def steady(cell: Cell) -> float:
    """Median seconds of a step; the first warms up."""
    return median(cell["seconds"][1:])


def best(sweep: Mapping[str, Cell]) -> str:
    """The fastest of what was swept; of equals the first."""
    return min(sweep, key=lambda name: steady(sweep[name]))


def learners(sweep: Mapping[str, Cell], learned: Mapping[str, Cell]) -> list[str]:
    """Which variants learn: the fastest; where it was no good, being of bfloat16 weights, which lose small updates, the
    fastest of float32 weights too."""
    first = best(sweep)
    if first not in learned or reached(learned[first]).step is not None or not first.startswith("bfloat16"):
        return [first]
    return [first, best({name: cell for name, cell in sweep.items() if not name.startswith("bfloat16")})]


def soonest(learned: Mapping[str, Cell]) -> str:
    """The variant that reached the goal in the fewest seconds; where none did, the one that is best at the end."""
    ends = {name: reached(cell) for name, cell in learned.items()}
    return min(ends, key=lambda name: (ends[name].seconds is None, ends[name].seconds or -ends[name].final))


def reached(cell: Cell, goal: float = GOAL) -> Reached:
    """Of a run's accuracies, which JSON keys by text. All steps count, the first too; evaluations do not."""
    accuracy = {int(step): value for step, value in cell["accuracy"].items()}
    step = first_at(accuracy, goal)
    return Reached(step, None if step is None else sum(cell["seconds"][:step]), accuracy[max(accuracy)])


def verdict(figure: float, bar: float) -> str:
    """The bar, and whether it is missed."""
    return f"bar: at least {bar:g}" + ("" if figure >= bar else " MISSED")


def add_arm(result: Result, arm: str, theirs: Cell, ours: Cell) -> None:
    """Seconds a step on both sides, what they sampled, and the ratio."""
    for who, cell in (("TRL", theirs), ("Banyan", ours)):
        result.add(f"{arm}: {who}, a step", steady(cell), "s", _range(cell["seconds"][1:]))
        result.add(f"{arm}: {who}, sampled tokens a step", median(cell["tokens"][1:]), "tokens")
    ratio = steady(theirs) / steady(ours)
    result.add(f"{arm}: TRL / Banyan", ratio, "x", verdict(ratio, BARS[arm]))


def add_learning(result: Result, what: str, theirs: Cell, ours: Cell) -> None:
    """Seconds to the goal, and a step of the whole run."""
    ends = {"TRL": reached(theirs), "Banyan": reached(ours)}
    for who, end in ends.items():
        if end.seconds is not None:
            result.add(f"{what}: {who}, training to {GOAL:.0%} held-out (step {end.step})", end.seconds, "s")
        else:
            result.notes.append(f"{what}: {who} did not reach {GOAL:.0%}")
        result.add(f"{what}: {who}, held-out at the end", 100 * end.final, "%")
    for who, cell in (("TRL", theirs), ("Banyan", ours)):
        result.add(f"{what}: {who}, a step of the whole run", steady(cell), "s", _range(cell["seconds"][1:]))
    whole = steady(theirs) / steady(ours)
    result.add(f"{what}: TRL / Banyan, a step", whole, "x", verdict(whole, BARS["as-shipped"]))
    if ends["TRL"].seconds is not None and ends["Banyan"].seconds is not None:
        ratio = ends["TRL"].seconds / ends["Banyan"].seconds
        result.add(f"{what}: TRL / Banyan, seconds to {GOAL:.0%}", ratio, "x", verdict(ratio, BARS["learning"]))


def add_ends(result: Result, pairs: Sequence[tuple[Cell, Cell]]) -> None:
    """Held-out accuracy at the end: means over the seeds, TRL's and ours, and which is better."""
    if not pairs:
        return
    finals = [[100 * reached(cell).final for cell in side] for side in zip(*pairs, strict=True)]
    for who, values in zip(("TRL", "Banyan"), finals, strict=True):
        result.add(f"learning: {who}, held-out at the end, mean of seeds", fmean(values), "%", _percents(values))
    worse = fmean(finals[1]) < fmean(finals[0])
    result.notes.append(
        f"learning: final accuracy is {'WORSE' if worse else 'no worse'} than TRL's, over {len(pairs)} seeds"
    )


def _percents(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _range(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)} steps"
