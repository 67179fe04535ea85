"""Figures from the cells: TRL's best variant, ratios, and seconds to an accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles
from typing import Any

from bench.harness.curve import first_at, stays_from, twice_at
from bench.harness.table import Result, median

BARS = {"same-work": 3.0, "as-shipped": 4.0, "learning": 4.0}
GOAL = 0.9
TRL, OURS = "TRL", "Banyan"
LABELS = {"trl": TRL, "naive": "naive loop", "banyan": OURS}
Cell = Mapping[str, Any]
Sides = Mapping[str, Cell]
"""One run of each side, by label."""


@dataclass(frozen=True)
class Reached:
    """Result of a run's accuracies.

    step: policy from which on the run stayed as accurate as required
    seconds: its training's seconds until then
    final: accuracy at the end
    first: first policy that was as accurate, which may have been chance
    twice: first of two measured policies in a row that were
    twice_seconds: its training's seconds until then
    """

    step: int | None
    seconds: float | None
    final: float
    first: int | None = None
    twice: int | None = None
    twice_seconds: float | None = None


def sides(cell: Cell) -> Sides:
    """Return the runs that were timed in one cell: TRL's, the naive loop's if it is there, ours."""
    return {label: cell[key] for key, label in LABELS.items() if key in cell}


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
    step, twice = stays_from(accuracy, goal), twice_at(accuracy, goal)
    seconds, twice_seconds = (
        None if at is None else sum(cell["seconds"][:at]) for at in (step, twice)
    )
    first = first_at(accuracy, goal)
    return Reached(step, seconds, accuracy[max(accuracy)], first, twice, twice_seconds)


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


def add_learning(result: Result, what: str, runs: Sides, swept: Cell | None = None) -> None:
    """Add seconds until a run stays at the goal, and a step of the whole run.

    swept: TRL's variant in the sweep
    """
    ends = {label: reached(cell) for label, cell in runs.items()}
    rows = _rows_measured(runs)
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
    for label, cell in runs.items():
        result.add(
            f"{what}: {label}, a step of the whole run",
            steady(cell),
            "s",
            _range(cell["seconds"][1:]),
        )
    if swept is not None:
        ratio = steady(runs[TRL]) / steady(swept)
        result.add(f"{what}: TRL, a step of the run / of its sweep", ratio, "x")
    for label in _rivals(runs):
        _add_ratios(result, f"{what}: {label} / {OURS}", label, runs, ends)


def _rivals(runs: Sides) -> list[str]:
    return [label for label in runs if label != OURS]


def _add_ratios(
    result: Result, what: str, label: str, runs: Sides, ends: Mapping[str, Reached]
) -> None:
    """Add how many times longer a rival's step takes, and its way; targets are for TRL's."""
    step = steady(runs[label]) / steady(runs[OURS])
    result.add(f"{what}, a step", step, "x", _verdict_of(label, step, "as-shipped"))
    theirs, ours = ends[label].seconds, ends[OURS].seconds
    if theirs is not None and ours is not None:
        bar = _verdict_of(label, theirs / ours, "learning")
        result.add(f"{what}, seconds until it stays", theirs / ours, "x", bar)


def _verdict_of(label: str, figure: float, arm: str) -> str:
    return verdict(figure, BARS[arm]) if label == TRL else ""


def _rows_measured(runs: Sides) -> int:
    """Return the held-out rows of all. Raises RuntimeError if they differ."""
    own = runs[OURS]["held_out"]
    for label, cell in runs.items():
        if cell["held_out"] != own:
            raise RuntimeError(
                f"{label} was measured on {cell['held_out']} held-out rows, ours on {own}"
            )
    return int(own)


def add_ends(result: Result, seeds: Sequence[Sides]) -> None:
    """Add, over the seeds of all: seconds until they stay, and held-out accuracy at the end."""
    if not seeds:
        return
    ends = {label: [reached(runs[label]) for runs in seeds] for label in seeds[0]}
    for label, side in ends.items():
        there = [end.seconds for end in side if end.seconds is not None]
        result.notes.append(
            f"learning: {label} stays at {GOAL:.0%} with {len(there)} of {len(seeds)} seeds"
        )
    for label in _rivals(seeds[0]):
        ratios = [
            theirs.seconds / ours.seconds
            for theirs, ours in zip(ends[label], ends[OURS], strict=True)
            if theirs.seconds is not None and ours.seconds is not None
        ]
        if ratios:
            counts = f"{len(ratios)} of {len(seeds)} seeds: " + ", ".join(
                f"{ratio:.2f}" for ratio in ratios
            )
            bar = _verdict_of(label, median(ratios), "learning")
            result.add(
                f"learning: {label} / {OURS}, seconds until it stays, median of seeds",
                median(ratios),
                "x",
                f"{bar}; {counts}" if bar else counts,
            )
    finals = {label: [100 * end.final for end in side] for label, side in ends.items()}
    for label, values in finals.items():
        result.add(
            f"learning: {label}, held-out at the end, mean of seeds",
            fmean(values),
            "%",
            _percents(values),
        )
    worse = fmean(finals[OURS]) < fmean(finals[TRL])
    result.notes.append(
        f"learning: final accuracy is {'WORSE' if worse else 'no worse'} than TRL's, over "
        f"{len(seeds)} seeds"
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
