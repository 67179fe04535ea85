"""`python -m bench.trl.learning`: the recorded table of whole runs, from their kept cells.

It writes bench/results/trl/learning.json, of which docs/seconds-to-90.svg is drawn.
"""

import itertools
import math
from collections.abc import Sequence
from statistics import fmean, median_low

from bench.harness.kept import Cell
from bench.harness.record import RESULTS, Headline, Table, write
from bench.harness.table import machine, median
from bench.trl import compare, figures
from bench.trl.figures import BARS, GOAL, OURS, TRL, Reached, reached, steady

_BAR = BARS["learning"]
COLUMNS = (
    "seed",
    "trainer",
    f"twice in a row at {GOAL:.0%}".replace("%", " %"),
    f"over {OURS}'s",
    f"stays at {GOAL:.0%} from".replace("%", " %"),
    f"over {OURS}'s",
    "held-out at the end",
    "a step",
)
_WAYS = {
    "twice_seconds": f"two measurements in a row are at {GOAL:.0%}".replace("%", " %"),
    "seconds": f"it stays at {GOAL:.0%} to its end".replace("%", " %"),
}
_RAW = (
    "Held-out accuracies of every second policy are in "
    "[raw.json](../../bench/results/trl/raw.json)."
)


def table(cells: Sequence[Cell]) -> Table:
    """Return a row for each seed and trainer, of TRL one variant, from cells of one commit.

    Raises RuntimeError for cells of several commits, or with different sides.
    """
    runs = [figures.sides(cell) for cell in cells]
    commits, labels = {cell["commit"] for cell in cells}, {tuple(side) for side in runs}
    if len(commits) != 1 or len(labels) != 1:
        raise RuntimeError(f"{len(commits)} commits and {len(labels)} sets of sides: measure anew")
    (sides,) = labels
    rivals = [label for label in sides if label != OURS]
    ends = [{label: reached(cell) for label, cell in run.items()} for run in runs]
    return Table(
        title=f"Learning, {len(runs[0][OURS]['seconds'])} steps",
        columns=COLUMNS,
        rows=[
            [
                str(seed),
                label,
                _twice(of[label]),
                _ratio_shown(of, label, "twice_seconds"),
                _stays(of[label]),
                _ratio_shown(of, label, "seconds"),
                f"{100 * of[label].final:.1f} %",
                f"{steady(run[label]):.2f} s",
            ]
            for seed, (run, of) in enumerate(zip(runs, ends, strict=True))
            for label in sides
        ],
        notes=[*(_note(ends, label) for label in rivals), _RAW],
        commit=next(iter(commits)),
        date=max(str(cell["date"]) for cell in cells)[:10],
        command="python -m bench trl",
        machine=_machine(cells),
        headline=[*_headlines(ends, rivals), _final(ends)],
    )


def _machine(cells: Sequence[Cell]) -> str:
    """Return this machine, and the loads while the cells were measured."""
    loads = [load for cell in cells for load in cell["load"]]
    bare = machine().rsplit(", load", 1)[0]
    return f"{bare}, load {min(loads):.1f} to {max(loads):.1f}"


def _twice(end: Reached) -> str:
    if end.twice_seconds is None:
        return "never"
    return f"step {end.twice}, {end.twice_seconds:.1f} s"


def _stays(end: Reached) -> str:
    first = "never" if end.first is None else f"first at step {end.first}"
    if end.seconds is None:
        return f"does not stay ({first})"
    return f"step {end.step}, {end.seconds:.1f} s ({first})"


def _ratio(of: dict[str, Reached], label: str, what: str) -> float | None:
    """Return a seed's ratio: 0 where only the rival is there, endless where only ours is."""
    theirs, ours = getattr(of[label], what), getattr(of[OURS], what)
    if theirs is None:
        return None if ours is None else math.inf
    return 0.0 if ours is None else theirs / ours


def _ratio_shown(of: dict[str, Reached], label: str, what: str) -> str:
    ratio = None if label == OURS else _ratio(of, label, what)
    return f"**{ratio:.2f}**" if ratio and ratio < math.inf else "–"


def _ratios(ends: Sequence[dict[str, Reached]], label: str, what: str) -> list[float]:
    """Return the ratios of all seeds with which either side is there."""
    found = (_ratio(of, label, what) for of in ends)
    return [ratio for ratio in found if ratio is not None]


def _shown(ratio: float, label: str) -> str:
    if ratio in (0.0, math.inf):
        return f"{label if ratio else OURS} does not"
    return f"{ratio:.2f}"


def _note(ends: Sequence[dict[str, Reached]], label: str) -> str:
    said = [
        f"{_shown(median_low(ratios), label)} until {words}"
        for what, words in _WAYS.items()
        if (ratios := _ratios(ends, label, what))
    ]
    target = f" (target: at least {_BAR:g})" if label == TRL else ""
    medians = "; ".join(said) or "none"
    of_seeds = f"Seconds of {label} over those of {OURS}, medians of the seeds: {medians}{target}."
    return of_seeds + _of_medians(ends, label)


def _of_medians(ends: Sequence[dict[str, Reached]], label: str) -> str:
    """Return the ratio of both sides' medians, as the picture shows it; empty without all seeds."""
    theirs, ours = (
        [seconds for of in ends if (seconds := of[side].twice_seconds) is not None]
        for side in (label, OURS)
    )
    if not len(theirs) == len(ours) == len(ends):
        return ""
    ratio = median(theirs) / median(ours)
    return f" The median of its seconds is {ratio:.2f} times that of {OURS}'s (twice in a row)."


def _headlines(ends: Sequence[dict[str, Reached]], rivals: Sequence[str]) -> list[Headline]:
    """Return the medians over the seeds; the target is for TRL's.

    Of an even number the lower of the two in the middle, since one of them may be endless.
    """
    made = []
    for (what, words), label in itertools.product(_WAYS.items(), rivals):
        if not (ratios := _ratios(ends, label, what)):
            continue
        bar, middle = label == TRL, median_low(ratios)
        counted = f"{len(ratios)} seeds: {', '.join(_shown(ratio, label) for ratio in ratios)}"
        figure = _shown(middle, label)
        made.append(
            Headline(
                what=f"learning: seconds until {words}, {label} / {OURS}, median of {counted}",
                figure=f"{figure} times" if 0 < middle < math.inf else figure,
                target=f"at least {_BAR:g}" if bar else "none",
                met=middle >= _BAR if bar else None,
            )
        )
    return made


def _final(ends: Sequence[dict[str, Reached]]) -> Headline:
    theirs, ours = (100 * fmean(of[label].final for of in ends) for label in (TRL, OURS))
    return Headline(
        what=f"learning: held-out accuracy at the end, mean of {len(ends)} seeds",
        figure=f"{ours:.1f} % against TRL's {theirs:.1f} %",
        target="no worse",
        met=ours >= theirs,
    )


if __name__ == "__main__":
    write(RESULTS / "trl" / "learning.json", table(compare.learnt()))
