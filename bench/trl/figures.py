"""Figures from the cells: TRL's best variant, ratios, and seconds to an accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles
from typing import Any

from bench.harness.curve import first_at, stays_from
from bench.harness.table import Result, median

BARS = {"same-work": 3.0, "as-shipped": 4.0, "learning": 4.0}
GOAL = 0.9
Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Reached:
    """Result of a run's accuracies.

    step: policy from which on the run stayed as accurate as required
    seconds: its training's seconds until then
    end: accuracy at the end
    first: first policy that was as accurate, which may have been chance
    """

    step: int | None
    seconds: float | None
    final: float
    first: int | None = None


def steady(cell: Cell) -> float:
    """Return median seconds of a step; the first warms up."""
    return median(cell["seconds"][1:])


def best(sweep: Mapping[str, Cell]) -> str:
    """Return the fastest variant of the sweep; of equals the first."""
    return min(sweep, key=lambda name: steady(sweep[name]))


def learners(sweep: Mapping[str, Cell], learned: Mapping[str, Cell]) -> list[str]:
    """Return the variants that learn.

    These are the fastest; and if it did not stay good and has bfloat16 weights, which lose small
    updates, the fastest of float32 weights too.
    """
    first = best(sweep)
    if (
        first not in learned
        or reached(learned[first]).step is not None
        or not first.startswith("bfloat16")
    ):
        return [first]
    return [
        first,
        best({name: cell for name, cell in sweep.items() if not name.startswith("bfloat16")}),
    ]


def soonest(learned: Mapping[str, Cell]) -> str:
    """Return the variant that is soonest to stay at the goal, else the best at the end."""
    ends = {name: reached(cell) for name, cell in learned.items()}
    return min(
        ends, key=lambda name: (ends[name].seconds is None, ends[name].seconds or -ends[name].final)
    )


def reached(cell: Cell, goal: float = GOAL) -> Reached:
    """Return the result of a run's accuracies, which JSON keys by text.

    All steps count, the first too; evaluations do not.
    """
    accuracy = {int(step): value for step, value in cell["accuracy"].items()}
    step = stays_from(accuracy, goal)
    seconds = None if step is None else sum(cell["seconds"][:step])
    return Reached(step, seconds, accuracy[max(accuracy)], first_at(accuracy, goal))


def verdict(figure: float, bar: float) -> str:
    """Return the bar, and whether it is missed."""
    return f"bar: at least {bar:g}" + ("" if figure >= bar else " MISSED")


def add_arm(result: Result, arm: str, theirs: Cell, ours: Cell) -> None:
    """Add seconds a step on both sides, their samples, and the ratio."""
    for label, cell in (("TRL", theirs), ("Banyan", ours)):
        result.add(f"{arm}: {label}, a step", steady(cell), "s", _range(cell["seconds"][1:]))
        result.add(f"{arm}: {label}, sampled tokens a step", median(cell["tokens"][1:]), "tokens")
    ratio = steady(theirs) / steady(ours)
    result.add(f"{arm}: TRL / Banyan", ratio, "x", verdict(ratio, BARS[arm]))


def add_sharing(result: Result, arm: str, arms: Cell, ways: Cell) -> None:
    """Add the factor of our step without shared prompts, and the rest of an arm's ratio."""
    for way in ("shared", "alone"):
        cell = ways[way]
        result.add(
            f"sharing: one process, prompts {way}, a step",
            steady(cell),
            "s",
            _range(cell["seconds"][1:]),
        )
    factor = steady(ways["alone"]) / steady(ways["shared"])
    ratio = steady(arms["trl"]) / steady(arms["banyan"])
    result.add("sharing: prompts alone / shared", factor, "x")
    result.add(f"sharing: {arm}, TRL / Banyan, less that factor", ratio / factor, "x")
    result.notes.append(
        f"of the {ratio:.2f} times of {arm}, sharing of prompts is a factor of {factor:.2f}; "
        f"{ratio / factor:.2f} is left"
    )


def add_learning(
    result: Result, what: str, theirs: Cell, ours: Cell, swept: Cell | None = None
) -> None:
    """Add seconds until a run stays at the goal, and a step of the whole run.

    swept: TRL's variant in the sweep
    """
    ends = {"TRL": reached(theirs), "Banyan": reached(ours)}
    rows = _rows_measured(theirs, ours)
    for label, end in ends.items():
        first = f"first at {GOAL:.0%}: step {end.first}"
        if end.seconds is not None:
            result.add(
                f"{what}: {label}, training until it stays at {GOAL:.0%} of {rows} rows",
                end.seconds,
                "s",
                f"step {end.step}; {first}",
            )
        else:
            result.notes.append(
                f"{what}: {label} does not stay at {GOAL:.0%} of {rows} rows ({first})"
            )
        result.add(f"{what}: {label}, held-out at the end", 100 * end.final, "%")
    for label, cell in (("TRL", theirs), ("Banyan", ours)):
        result.add(
            f"{what}: {label}, a step of the whole run",
            steady(cell),
            "s",
            _range(cell["seconds"][1:]),
        )
    whole = steady(theirs) / steady(ours)
    result.add(f"{what}: TRL / Banyan, a step", whole, "x", verdict(whole, BARS["as-shipped"]))
    if swept is not None:
        result.add(
            f"{what}: TRL, a step of the run / of its sweep", steady(theirs) / steady(swept), "x"
        )
    if ends["TRL"].seconds is not None and ends["Banyan"].seconds is not None:
        ratio = ends["TRL"].seconds / ends["Banyan"].seconds
        result.add(
            f"{what}: TRL / Banyan, seconds until it stays",
            ratio,
            "x",
            verdict(ratio, BARS["learning"]),
        )


def _rows_measured(theirs: Cell, ours: Cell) -> int:
    """Return the held-out rows of both. Raises RuntimeError if they differ."""
    if theirs["held_out"] != ours["held_out"]:
        raise RuntimeError(
            f"TRL was measured on {theirs['held_out']} held-out rows, ours on {ours['held_out']}"
        )
    return int(theirs["held_out"])


def add_ends(result: Result, pairs: Sequence[tuple[Cell, Cell]]) -> None:
    """Add, over the seeds of both: seconds until they stay, and held-out accuracy at the end."""
    if not pairs:
        return
    sides = [[reached(cell) for cell in side] for side in zip(*pairs, strict=True)]
    ratios = [
        theirs.seconds / ours.seconds
        for theirs, ours in zip(*sides, strict=True)
        if theirs.seconds is not None and ours.seconds is not None
    ]
    for label, side in zip(("TRL", "Banyan"), sides, strict=True):
        there = [end.seconds for end in side if end.seconds is not None]
        result.notes.append(
            f"learning: {label} stays at {GOAL:.0%} with {len(there)} of {len(pairs)} seeds"
        )
    if ratios:
        counts = f"{len(ratios)} of {len(pairs)} seeds: " + ", ".join(
            f"{ratio:.2f}" for ratio in ratios
        )
        bar = verdict(median(ratios), BARS["learning"])
        result.add(
            "learning: TRL / Banyan, seconds until it stays, median of seeds",
            median(ratios),
            "x",
            f"{bar}; {counts}",
        )
    finals = [[100 * end.final for end in side] for side in sides]
    for label, values in zip(("TRL", "Banyan"), finals, strict=True):
        result.add(
            f"learning: {label}, held-out at the end, mean of seeds",
            fmean(values),
            "%",
            _percents(values),
        )
    worse = fmean(finals[1]) < fmean(finals[0])
    result.notes.append(
        f"learning: final accuracy is {'WORSE' if worse else 'no worse'} than TRL's, over "
        f"{len(pairs)} seeds"
    )


def _percents(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def spread(cell: Cell) -> str:
    """Return the spread of the steps after the first."""
    return _range(cell["seconds"][1:])


def _range(seconds: Sequence[float]) -> str:
    """Return the spread as text: the middle half, and all."""
    whole = f"{min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)} steps"
    if len(seconds) < 4:
        return whole
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return f"middle half {low:.2f} to {high:.2f}; {whole}"
