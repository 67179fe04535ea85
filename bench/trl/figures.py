"""What the cells say: the variant that is TRL's best, ratios, and seconds to an accuracy. Pure."""

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
    """From which policy on a run stayed as accurate as asked, its training's seconds until then, and its accuracy at the
    end. first: the first policy that was as accurate, which may have been chance."""

    step: int | None
    seconds: float | None
    final: float
    first: int | None = None


def steady(cell: Cell) -> float:
    """Median seconds of a step; the first warms up."""
    return median(cell["seconds"][1:])


def best(sweep: Mapping[str, Cell]) -> str:
    """The fastest of what was swept; of equals the first."""
    return min(sweep, key=lambda name: steady(sweep[name]))


def learners(sweep: Mapping[str, Cell], learned: Mapping[str, Cell]) -> list[str]:
    """Which variants learn: the fastest; where it did not stay good, and has bfloat16 weights, which lose small updates, the
    fastest of float32 weights too."""
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
    """The variant that stays at the goal after the fewest seconds; where none did, the one that is best at the end."""
    ends = {name: reached(cell) for name, cell in learned.items()}
    return min(
        ends, key=lambda name: (ends[name].seconds is None, ends[name].seconds or -ends[name].final)
    )


def reached(cell: Cell, goal: float = GOAL) -> Reached:
    """Of a run's accuracies, which JSON keys by text. All steps count, the first too; evaluations do not."""
    accuracy = {int(step): value for step, value in cell["accuracy"].items()}
    step = stays_from(accuracy, goal)
    seconds = None if step is None else sum(cell["seconds"][:step])
    return Reached(step, seconds, accuracy[max(accuracy)], first_at(accuracy, goal))


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


def add_sharing(result: Result, arm: str, arms: Cell, ways: Cell) -> None:
    """How many times longer our step takes without shared prompts, and what is left of an arm's ratio without them."""
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
    """Seconds until a run stays at the goal, and a step of the whole run. swept: TRL's variant in the sweep."""
    ends = {"TRL": reached(theirs), "Banyan": reached(ours)}
    rows = _rows_measured(theirs, ours)
    for who, end in ends.items():
        first = f"first at {GOAL:.0%}: step {end.first}"
        if end.seconds is not None:
            result.add(f"{what}: {who}, training until it stays at {GOAL:.0%} of {rows} rows", end.seconds, "s",
                       f"step {end.step}; {first}")  # fmt: skip
        else:
            result.notes.append(
                f"{what}: {who} does not stay at {GOAL:.0%} of {rows} rows ({first})"
            )
        result.add(f"{what}: {who}, held-out at the end", 100 * end.final, "%")
    for who, cell in (("TRL", theirs), ("Banyan", ours)):
        result.add(
            f"{what}: {who}, a step of the whole run",
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
    """Held-out rows of both. Raises RuntimeError where they differ."""
    if theirs["held_out"] != ours["held_out"]:
        raise RuntimeError(
            f"TRL was measured on {theirs['held_out']} held-out rows, ours on {ours['held_out']}"
        )
    return int(theirs["held_out"])


def add_ends(result: Result, pairs: Sequence[tuple[Cell, Cell]]) -> None:
    """Over the seeds, TRL's and ours: seconds until they stay, and held-out accuracy at the end, and which is better."""
    if not pairs:
        return
    sides = [[reached(cell) for cell in side] for side in zip(*pairs, strict=True)]
    ratios = [
        theirs.seconds / ours.seconds
        for theirs, ours in zip(*sides, strict=True)
        if theirs.seconds is not None and ours.seconds is not None
    ]
    for who, side in zip(("TRL", "Banyan"), sides, strict=True):
        there = [end.seconds for end in side if end.seconds is not None]
        result.notes.append(
            f"learning: {who} stays at {GOAL:.0%} with {len(there)} of {len(pairs)} seeds"
        )
    if ratios:
        said = f"{len(ratios)} of {len(pairs)} seeds: " + ", ".join(
            f"{ratio:.2f}" for ratio in ratios
        )
        bar = verdict(median(ratios), BARS["learning"])
        result.add(
            "learning: TRL / Banyan, seconds until it stays, median of seeds",
            median(ratios),
            "x",
            f"{bar}; {said}",
        )
    finals = [[100 * end.final for end in side] for side in sides]
    for who, values in zip(("TRL", "Banyan"), finals, strict=True):
        result.add(
            f"learning: {who}, held-out at the end, mean of seeds",
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
    """Of the steps after the first."""
    return _range(cell["seconds"][1:])


def _range(seconds: Sequence[float]) -> str:
    """The spread: the middle half, and all."""
    whole = f"{min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)} steps"
    if len(seconds) < 4:
        return whole
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return f"middle half {low:.2f} to {high:.2f}; {whole}"
