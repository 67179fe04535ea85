"""Rule of the diagnostic index for runs whose tree policy is to share tokens, from stored trees.

It is made for the figures of one run, because its levers depend on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from banyan.doctor.rule import DiagnosticRule, Lever
from banyan.doctor.series import LEAST, Evidence, Series
from banyan.payoff import verdict
from banyan.payoff.shape import Shape
from banyan.payoff.tokens import TreeTokens, total

LEAST_TREES = 12  # fewest trees: of fewer, one with a long answer decides the saving


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownTree:
    """Whole training tree of a run.

    group: its group
    step: policy step of its newest segment
    lengths: answer tokens of each leaf's path
    tokens: its tokens
    """

    group: str
    step: int
    lengths: tuple[int, ...]
    tokens: TreeTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrees:
    """Facts of a run's trees.

    shape: shape that the recipe gives them
    newest: its newest whole trees
    shared: share of the answer tokens of all paths of the run that are on another path, too
    """

    shape: Shape
    newest: Sequence[GrownTree]
    shared: float = 0.0


def tree_rules(run: RunTrees | None) -> tuple[DiagnosticRule, ...]:
    """Return the rules that a run's trees break; none where sharing is not their purpose."""
    if run is None or not run.shape.judged or len(run.newest) < LEAST_TREES:
        return ()
    saved = total(tree.tokens for tree in run.newest).saved
    if saved >= verdict.LEAST_SAVED:
        return ()
    length = median(length for tree in run.newest for length in tree.lengths)
    return (
        DiagnosticRule(
            name="trees-do-not-pay",
            symptom=f"{verdict.saving(saved)}: the forks share too little of these answers",
            module="generate",
            check=lambda series: _evidence(series, run, saved, length),
            levers=_levers(run.shape, int(length)),
        ),
    )


def told(run: RunTrees | None) -> str:
    """Return what the newest trees of a run share, and what is known of such answers.

    Empty where sharing is not their purpose, or before there are any.
    """
    if run is None or not run.shape.judged or not run.newest:
        return ""
    counts = total(tree.tokens for tree in run.newest)
    length = int(median(length for tree in run.newest for length in tree.lengths))
    trees = f"the newest {len(run.newest)} training trees: {counts.forks} forks inside answers"
    return f"{trees}, {verdict.saving(counts.saved)}; {verdict.known(length)}"


def _evidence(
    series: Series, run: RunTrees, saved: float, length: float
) -> tuple[Evidence, ...] | None:
    if len(series.steps) < LEAST:
        return None
    first, last = min(tree.step for tree in run.newest), max(tree.step for tree in run.newest)
    groups = {tree.group for tree in run.newest}
    forked = {tree.group for tree in run.newest if tree.tokens.forks}
    stretch = run.shape.stretch
    # A fixed fork lies behind the ends of answers that are no longer than the stretch before it.
    limit = float(stretch.value) if stretch is not None and length <= stretch.value else None
    ends = series.steps[0].number, series.steps[-1].number
    uniform = series.level("zero_variance_share")
    return (
        Evidence("saved_share", saved, first, last, limit=verdict.LEAST_SAVED),
        Evidence("forked_groups_share", len(forked) / len(groups), first, last),
        Evidence("answer_tokens_median", length, first, last, limit=limit),
        Evidence("shared_share", run.shared, *ends),
        *((uniform,) if uniform is not None else ()),
    )


def _levers(shape: Shape, length: int) -> tuple[Lever, ...]:
    *nearer, independent = verdict.remedies(shape, length)
    forks = "forks inside the answers: their median length by the levels of the tree"
    first, *more = independent
    typed = " ".join(f"--set '{part}'" for part in more)
    why = f"with {typed}: independent samples, which cost no more on these answers"
    return (*(Lever(change[0], forks) for change in nearer), Lever(first, why))
