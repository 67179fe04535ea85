"""Verdicts on a tree policy: why its trees cannot pay for themselves. Pure.

A tree pays by tokens that its leaves share. Leaves that share nothing are independent samples;
leaves that share much are alike, so that more groups are all right or all wrong.
"""

import math
from dataclasses import dataclass

from banyan.payoff.shape import INDEPENDENT, Setting, Shape
from banyan.payoff.tokens import TreeTokens

LEAST_SAVED = 0.05
"""Share of the sampled tokens below which sharing is no reason for trees.

A choice, not a measured bound: each stretch of a tree is a request of its own, and steps decode few
branches until the tree is wide.
"""
SHORT_ANSWER = 12
"""Tokens of an answer up to which no tree recipe has ended above independent samples.

Measured at 8 to 12 tokens and 4,000 sampled ones (docs/benchmarks/history/equal.md).
"""
LONG_ANSWER = 48
"""Tokens of an answer from which on trees have learnt more for as many sampled tokens.

Measured at 48 and 96 tokens (docs/benchmarks/trees.md).
"""
WHOLE_LEAVES = frozenset(
    {
        "dapo",
        "dr-grpo",
        "echo",
        "grpo",
        "mc-grpo",
        "reinforce++",
        "reinforce++-baseline",
        "rloo",
        "tree-grpo",
        "xrpo",
    }
)
"""Estimators that compare whole leaves, wherever in a tree their paths part."""


Change = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Reason why trees cannot pay, with its remedy.

    name: name of the reason
    words: the reason, with its figures
    changes: what to change, each as arguments of `--set` that belong together
    """

    name: str
    words: str
    changes: tuple[Change, ...]

    @property
    def advice(self) -> str:
        """Changes as a person types them."""
        typed = (" ".join(f"--set '{part}'" for part in change) for change in self.changes)
        return " or ".join(typed)


def verdicts(shape: Shape, tokens: TreeTokens) -> list[Verdict]:
    """Return the reasons why trees of this shape cannot pay; none for independent samples."""
    if not shape.judged:
        return []
    if not tokens.forks:
        return [_no_fork(shape, tokens)]
    found = []
    if tokens.saved < LEAST_SAVED:
        words = f"{saving(tokens.saved)}: less than {LEAST_SAVED:.0%} do not pay for a tree"
        changes = remedies(shape, shape.max_new_tokens)
        found.append(Verdict(name="nothing-saved", words=words, changes=changes))
    if shape.max_new_tokens <= SHORT_ANSWER:
        words = (
            f"answers have at most {shape.max_new_tokens} tokens: up to {SHORT_ANSWER}, no tree "
            "recipe has ended above independent samples after 4,000 sampled tokens, and most ended "
            "below (docs/benchmarks/history/equal.md); a task of longer answers may suit them"
        )
        changes = (independent(shape),)
        found.append(Verdict(name="short-answers", words=words, changes=changes))
    return found


def known(tokens: int) -> str:
    """Return what measurements say of trees whose answers have so many tokens."""
    if tokens <= SHORT_ANSWER:
        return (
            f"answers of {tokens} tokens: up to {SHORT_ANSWER} no tree recipe has ended above "
            "independent samples (docs/benchmarks/history/equal.md)"
        )
    if tokens < LONG_ANSWER:
        return (
            f"answers of {tokens} tokens: that trees pay is not shown below {LONG_ANSWER}; with 18 "
            "no difference shows (docs/benchmarks/sums.md)"
        )
    return (
        f"answers of {tokens} tokens: from {LONG_ANSWER} on some trees have learnt more for as "
        "many sampled tokens, where every step must be right (docs/benchmarks/trees.md)"
    )


def notes(shape: Shape, tokens: TreeTokens) -> list[str]:
    """Return facts about a recipe's forks that are no faults."""
    found = []
    if tokens.forks and shape.advantage in WHOLE_LEAVES:
        found.append(
            f"optimise.advantage {shape.advantage} gives credit per leaf: forks share tokens, and "
            "where paths part makes no difference to their advantages"
        )
    deep, stretch = shape.depth, shape.stretch
    if deep and stretch and deep.value > (most := levels(shape.max_new_tokens, stretch)):
        found.append(
            f"generate.settings.{deep.name} is {deep.value}: answers of at most "
            f"{shape.max_new_tokens} tokens end at depth {most}"
        )
    return found


def levels(tokens: int, stretch: Setting) -> int:
    """Return the stretches of an answer of so many tokens."""
    return -(-tokens // stretch.value)


def fitting_stretch(tokens: int, width: int) -> int:
    """Return the tokens between forks at which binary trees of this width share most.

    They have log2(width) levels, which the answer's tokens divide among themselves; 0 if an answer
    has fewer tokens than levels.
    """
    return tokens // math.ceil(math.log2(max(2, width)))


def remedies(shape: Shape, tokens: int) -> tuple[Change, ...]:
    """Return the changes for a shape whose answers have so many tokens."""
    stretch, fitting = shape.stretch, fitting_stretch(tokens, shape.width)
    if stretch is None or not 0 < fitting < stretch.value:
        return (independent(shape),)
    return (f"generate.settings.{stretch.name}={fitting}",), independent(shape)


def independent(shape: Shape) -> Change:
    """Return the change to independent samples, as many as a tree has leaves."""
    headless = ("optimise.head=null",) if shape.head else ()
    alike = ("eval.votes={}",) if shape.votes else ()
    return (
        f"generate.policy={INDEPENDENT}",
        f"generate.settings={{width: {shape.width}}}",
        *headless,
        *alike,
    )


def saving(saved: float) -> str:
    """Return a saving in words."""
    share, than = f"{abs(saved):.1%}", "independent samples of the same leaves"
    if share == "0.0%":
        return f"trees sample as many tokens as {than}"
    return f"trees sample {share} {'more' if saved < 0.0 else 'fewer'} tokens than {than}"


def _no_fork(shape: Shape, tokens: TreeTokens) -> Verdict:
    """Return the verdict on trees whose paths part at the prompt alone."""
    stretch = shape.stretch
    if stretch is not None and stretch.value >= shape.max_new_tokens:
        words = (
            f"generate.settings.{stretch.name} is {stretch.value}, and generate.max_new_tokens is "
            f"{shape.max_new_tokens}: no fork lies inside an answer, and a tree of depth one is "
            f"{INDEPENDENT} by another name"
        )
    else:
        words = "no fork lies inside an answer, so leaves share nothing but their prompt"
    if tokens.saved < 0.0:
        words += f"; {saving(tokens.saved)}"
    changes = remedies(shape, shape.max_new_tokens)
    return Verdict(name="no-fork", words=words, changes=changes)
