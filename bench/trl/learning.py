"""`python -m bench.trl.learning`: the recorded table of whole runs, from their kept cells.

It writes bench/results/trl/learning.json, of which docs/seconds-to-90.svg is drawn.
"""

from collections.abc import Sequence
from statistics import fmean

from bench.harness.kept import Cell
from bench.harness.record import RESULTS, Headline, Table, write
from bench.harness.table import machine, median
from bench.trl import compare, figures
from bench.trl.figures import BARS, GOAL, OURS, TRL, Reached, reached, steady

_BAR = BARS["learning"]
_RAW = (
    "Held-out accuracies of every second policy are in "
    "[raw.json](../../bench/results/trl/raw.json)."
)


def table(cells: Sequence[Cell]) -> Table:
    """Return a row for each seed, with TRL's one variant, from cells of one commit.

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
        columns=[
            "",
            *(f"{label}: stays at {_percent(GOAL)} from" for label in sides),
            *(f"seconds, {label} / {OURS}" for label in rivals),
            *(f"held-out at the end, {label}" for label in sides),
            *(f"a step, {label}" for label in sides),
        ],
        rows=[
            [
                f"seed {seed}",
                *(_until(of[label]) for label in sides),
                *(_ratio_shown(of, label) for label in rivals),
                *(f"{100 * of[label].final:.1f} %" for label in sides),
                *(f"{steady(run[label]):.2f} s" for label in sides),
            ]
            for seed, (run, of) in enumerate(zip(runs, ends, strict=True))
        ],
        notes=[*(_note(ends, label) for label in rivals), _RAW],
        commit=next(iter(commits)),
        date=max(str(cell["date"]) for cell in cells)[:10],
        command="python -m bench trl",
        machine=machine(),
        headline=[*_headlines(ends, rivals), _final(ends)],
    )


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _until(end: Reached) -> str:
    first = "never" if end.first is None else f"first at step {end.first}"
    if end.seconds is None:
        return f"does not stay ({first})"
    return f"step {end.step}, {end.seconds:.1f} s ({first})"


def _ratio(of: dict[str, Reached], label: str) -> float | None:
    theirs, ours = of[label].seconds, of[OURS].seconds
    return None if theirs is None or ours is None else theirs / ours


def _ratio_shown(of: dict[str, Reached], label: str) -> str:
    ratio = _ratio(of, label)
    return "–" if ratio is None else f"**{ratio:.2f}**"


def _ratios(ends: Sequence[dict[str, Reached]], label: str) -> list[float]:
    found = (_ratio(of, label) for of in ends)
    return [ratio for ratio in found if ratio is not None]


def _note(ends: Sequence[dict[str, Reached]], label: str) -> str:
    ratios = _ratios(ends, label)
    if not ratios:
        return f"With no seed {label} and {OURS} both stay at {_percent(GOAL)}."
    target = f" (target: at least {_BAR:g})" if label == TRL else ""
    counted = f"Over {len(ratios)} of {len(ends)} seeds the median ratio of seconds"
    return f"{counted}, {label} / {OURS}, is {median(ratios):.2f}{target}."


def _headlines(ends: Sequence[dict[str, Reached]], rivals: Sequence[str]) -> list[Headline]:
    """Return the medians over the seeds; the target is for TRL's, and for all of its seeds."""
    made = []
    for label in rivals:
        if not (ratios := _ratios(ends, label)):
            continue
        bar = label == TRL
        counted = f"{len(ratios)} of {len(ends)} seeds: {', '.join(f'{r:.2f}' for r in ratios)}"
        what = f"learning: seconds until it stays at {_percent(GOAL)}, {label} / {OURS}"
        made.append(
            Headline(
                what=f"{what}, median of {counted}",
                figure=f"{median(ratios):.2f} times",
                target=f"at least {_BAR:g}" if bar else "none",
                met=median(ratios) >= _BAR if bar else None,
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
