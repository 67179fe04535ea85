"""The table of the experiment `trees`: what each arm spent, and ratios to independent samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from bench.harness.kept import Cell
from bench.harness.record import NO_TARGET, Headline, Table
from bench.harness.table import Result
from bench.trees import choice, course, figures, protocol
from bench.trees.arms import WHOLE, Setting, Task
from bench.trees.figures import Ratio, Spent
from bench.trees.protocol import LONGEST, MAIN, OTHERS, RIVALS, SEEDS, Get, Wanted

COLUMNS = (
    "task",
    "arm",
    "prompts × leaves @ rate",
    "seeds (there)",
    "sampled tokens",
    "the rival's over it",
    "95 %",
    "p (Holm)",
    "accuracy at the end",
    "prefilled",
    "trained",
    "updates",
    "positions",
    "occupancy",
    "processor s",
)
LEAST_RATIO, LEAST_GAIN, LEAST_SURE_GAIN = 1.15, 25.0, 10.0


@dataclass
class Compared(Result):
    """Result with one line for each arm and task.

    lines: values in the order of COLUMNS
    heads: figures for the overview
    """

    lines: list[list[str | float]] = field(default_factory=list)
    heads: list[Headline] = field(default_factory=list)

    def save(self) -> None:
        """Print the lines too, and write them."""
        for line in self.lines:
            print("  " + " | ".join(f"{c:,.4g}" if isinstance(c, float) else c for c in line))
        super().save()

    def table(self) -> Table:
        """Make the table of the lines."""
        made = super().table()
        return replace(made, columns=COLUMNS, rows=self.lines, headline=self.heads)


def table(get: Get) -> Compared:
    """Return what the cells that are there say."""
    result = Compared("trees")
    rival, tree = protocol.rival(get), protocol.tree(get)
    result.notes += _tuning(get)
    if rival is None:
        result.notes.append("the estimator of independent samples is not chosen yet")
        return result
    said = tree or "not chosen yet, as runs are missing"
    result.notes.append(f"the rival is {rival}; the trees that answer for the bars: {said}")
    reported = list(protocol.reported(get))
    further = _there(protocol.beyond(get), get)
    for task in SEEDS:
        runs = _there([w for w in reported if w.task == task], get)
        _compare(result, title_of(task), rival, runs, get)
        if rival in runs and tree in runs:
            _main_bar(result, task, runs[rival], runs[tree], get)
    _compare(result, f"K = {LONGEST}, whole chain, beyond the cap", rival, further, get)
    _longest_bar(result, rival, tree, reported, further, get)
    main = _there([w for w in reported if w.task == MAIN and w.arm.name == rival], get)
    trees = _there([w for w in reported if w.task == MAIN and w.arm.name == tree], get)
    larger = _there(protocol.matched_runs(protocol.matched(get), get), get)
    smaller = _there(protocol.matched_runs(protocol.matched_rival(get), get), get)
    equal = f"{title_of(MAIN)}, equal tokens an update"
    _compare(result, f"{equal}: the rival's", rival, main | larger, get)
    _compare(result, f"{equal}: the trees'", rival, smaller | trees, get)
    screen = _there(protocol.screened(get), get)
    _compare(result, f"{title_of(MAIN)}, screen", rival, main | screen, get)
    return result


Runs = Mapping[str, Sequence[Wanted]]


def _there(wanted: Sequence[Wanted], get: Get) -> dict[str, list[Wanted]]:
    """Return the runs that are measured, by arm."""
    runs: dict[str, list[Wanted]] = {}
    for one in wanted:
        if get(one) is not None:
            runs.setdefault(one.arm.name, []).append(one)
    return runs


def _cells(runs: Sequence[Wanted], get: Get) -> list[Cell]:
    return [cell for one in runs if (cell := get(one)) is not None]


def title_of(task: Task) -> str:
    """Return the words for a task."""
    return f"K = {task.operations}, {'whole chain' if task.right == WHOLE else 'last digit'}"


def _compare(result: Compared, title: str, rival: str, runs: Runs, get: Get) -> None:
    """Add the lines of a comparison, the rival's first."""
    others = [name for name in runs if name != rival]
    if not others or rival not in runs:
        return
    spent = {name: [choice.spent(cell) for cell in _cells(runs[name], get)] for name in runs}
    sure = [name for name in others if min(len(spent[name]), len(spent[rival])) > 1]
    ratios = {name: figures.ratio(spent[rival], spent[name]) for name in sure}
    adjusted = dict(zip(sure, figures.holm([ratios[name].p for name in sure]), strict=True))
    for name in (rival, *others):
        setting, ratio = runs[name][0].setting, ratios.get(name)
        against = _against(ratio, adjusted.get(name, math.nan))
        cells = _cells(runs[name], get)
        result.lines.append([title, name, shape(setting), *_line(spent[name], cells, against)])
        if ratio is not None and title == title_of(MAIN):
            what = f"{title}: tokens of {rival} over those of {name}"
            figure = f"{against[0]} ({against[1]})"
            result.heads.append(Headline(what=what, figure=figure, target=NO_TARGET, met=None))


def _against(ratio: Ratio | None, p: float) -> list[str | float]:
    """Return the ratio's values of a line."""
    if ratio is None:
        return ["–", "–", "–"]
    estimate = f"{ratio.estimate:.2f}{'' if ratio.exact else ' (a bound)'}"
    return [estimate, f"{ratio.low:.2f} to {ratio.high:.2f}", f"{p:.2g}"]


def _line(
    spent: Sequence[Spent], cells: Sequence[Cell], against: list[str | float]
) -> list[str | float]:
    """Return the values of an arm on a task, behind its setting."""
    there = sum(not run.censored for run in spent)
    mean = math.exp(fmean(math.log(run.value) for run in spent))
    accuracy = 100 * fmean(cell["points"][-1]["accuracy"] for cell in cells)
    ends = [end(cell) for cell in cells]
    of = {what: fmean(end[what] for end in ends) for what in ends[0] if what != "rows"}
    return [
        f"{len(cells)} ({there})",
        f"{'' if there == len(cells) else '> '}{mean:,.0f}",
        *against,
        f"{accuracy:.1f} %",
        of["prefilled"],
        of["trained"],
        of["updates"],
        of["positions"],
        of["branches"] / of["positions"] if of["positions"] else 0.0,
        of["processor_s"],
    ]


def end(cell: Cell) -> dict[str, Any]:
    """Return the point at which a run was there, or its last one."""
    there = course.reached(cell)
    points: list[dict[str, Any]] = cell["points"]
    return next((point for point in points if point["sampled"] == there), points[-1])


def _main_bar(
    result: Compared, task: Task, rival: Sequence[Wanted], tree: Sequence[Wanted], get: Get
) -> None:
    """Add the figure of the main task's bar."""
    first, second = _cells(rival, get), _cells(tree, get)
    if task != MAIN or min(len(first), len(second)) < 2:
        return
    ours, theirs = ([choice.spent(cell) for cell in cells] for cells in (second, first))
    found = figures.ratio(theirs, ours)
    names = f"{rival[0].arm.name} over those of {tree[0].arm.name}"
    what = f"{title_of(task)}: tokens of {names}, lower bound"
    target, met = f"at least {LEAST_RATIO}", found.low >= LEAST_RATIO
    shown = f"{found.low:.2f} of {found.estimate:.2f}"
    result.heads.append(Headline(what=what, figure=shown, target=target, met=met))


def _longest_bar(
    result: Compared,
    rival: str,
    tree: str | None,
    reported: Sequence[Wanted],
    further: Runs,
    get: Get,
) -> None:
    """Add the figure of the longest task's bar: accuracies at its cap.

    A run that goes on beyond the cap stands for the same seed's run up to it, where that is not
    there.
    """
    runs = _there([w for w in reported if w.task.operations == LONGEST], get)
    ends = dict[str, list[float]]()
    for name in (rival, tree):
        there = {w.seed: w for w in (*further.get(name or "", ()), *runs.get(name or "", ()))}
        cells = _cells([there[seed] for seed in sorted(there)], get)
        ends[name or ""] = [100 * _at_cap(cell)["accuracy"] for cell in cells]
    if tree is None or not all(ends.values()):
        return
    gain, shown, sure = _gain(ends[tree], ends[rival])
    what = f"K = {LONGEST}, whole chain: accuracy at the cap, {tree} over {rival}"
    target = f"at least {LEAST_GAIN:.0f} points, surely {LEAST_SURE_GAIN:.0f}"
    met = gain >= LEAST_GAIN and sure > LEAST_SURE_GAIN
    result.heads.append(Headline(what=what, figure=shown, target=target, met=met))


def _at_cap(cell: Cell) -> dict[str, Any]:
    """Return the first point at the longest task's cap, or the last one of a run that ends
    before."""
    points: list[dict[str, Any]] = cell["points"]
    return next((p for p in points if p["sampled"] >= protocol.CAPS[LONGEST]), points[-1])


def _gain(first: Sequence[float], second: Sequence[float]) -> tuple[float, str, float]:
    """Return a difference of accuracies, its words, and what it surely is: nothing with one run."""
    if min(len(first), len(second)) < 2:
        gain = fmean(first) - fmean(second)
        return gain, f"{gain:+.1f} points (one run of an arm)", -math.inf
    gain, low, high = figures.difference(first, second)
    return gain, f"{gain:+.1f} points ({low:+.1f} to {high:+.1f})", low


def _tuning(get: Get) -> list[str]:
    """Return each arm's best setting, with its geometric mean over the tuning seeds."""
    notes = []
    for name in (*RIVALS, *OTHERS):
        runs = [wanted for wanted in protocol.tuning(name) if get(wanted) is not None]
        whole = [w for w in runs if sum(w.setting == other.setting for other in runs) > 1]
        best = choice.best(whole, get) if whole else None
        if best is not None:
            of = len({wanted.setting for wanted in whole})
            mean = f"{math.exp(best[0]):,.0f} tokens"
            notes.append(f"tuned {name}: {shape(best[1])}, {mean}, of {of} settings")
    return notes


def shape(setting: Setting) -> str:
    return f"{setting.groups} × {setting.leaves} @ {setting.rate:g}"
