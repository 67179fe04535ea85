"""Trees for estimators' tests: by hand, random by hypothesis, and one tree written differently."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from banyan.facts import Facts
from banyan.plugins import GroupTrees
from banyan.segment import Finish, Kind, Origin, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

_KINDS = {"tool": Kind.TOOL, "forced": Kind.FORCED, "policy": Kind.POLICY}


@dataclass
class Twig:
    """Segment to be planted; its children fork from its end.

    reward: reward of the leaf that ends it, or its own if `inner`
    """

    children: list["Twig"] = field(default_factory=list)
    reward: float | None = None
    leaf: bool = False
    inner: float | None = None
    tokens: int = 1
    kind: str = "policy"
    finish: Finish = Finish.BOUNDARY
    word: int | None = None
    logprob: float = -1.0
    named: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    step: int = 0


def leaf(reward: float | None, **more: Any) -> Twig:
    return Twig(reward=reward, leaf=True, **more)


def chain(*twigs: Twig) -> Twig:
    """Return twigs below each other."""
    for above, below in pairwise(twigs):
        above.children.append(below)
    return twigs[0]


@dataclass
class Planted:
    """View, and the segments by the depth-first order of their twigs."""

    view: TreeView
    segments: list[Segment]


def planted(children: Sequence[Twig], tree_id: bytes = b"t" * 32, prompt: int = 3) -> Planted:
    """Plant the tree of some first segments."""
    tree = Tree(tree_id)
    root = Segment(tree_id, b"", 0, 0, Kind.PROMPT, np.arange(prompt))
    tree.add(root)
    rewards: dict[Leaf, float | None] = {}
    own: dict[Leaf, float] = {}
    named: dict[bytes, Mapping[str, Any]] = {}
    parts: dict[Leaf, Mapping[str, float]] = {}
    segments = [root]

    def grow(twig: Twig, parent: Segment, ordinal: int) -> None:
        kind = _KINDS[twig.kind]
        word = 7 + ordinal if twig.word is None else twig.word
        created = Segment(
            tree_id,
            parent.id,
            len(parent),
            ordinal,
            kind,
            np.full(twig.tokens, word),
            np.full(twig.tokens, twig.logprob) if kind is not Kind.TOOL else [],
            origin=Origin.BRANCH if kind is Kind.FORCED else Origin.NONE,
            finish=twig.finish,
            entropies_T=np.full(twig.tokens, 0.25 * (1 + word % 5)),
            policy_step=twig.step,
        )
        tree.add(created)
        segments.append(created)
        if twig.leaf:
            rewards[Leaf(created.id, len(created))] = twig.reward
            parts[Leaf(created.id, len(created))] = twig.parts
        if twig.inner is not None:
            own[Leaf(created.id, len(created))] = twig.inner
        if twig.named:
            named[created.id] = twig.named
        for index, child in enumerate(twig.children):
            grow(child, created, index)

    for index, child in enumerate(children):
        grow(child, root, index)
    return Planted(TreeView(tree, list(rewards), rewards, Facts(own, named, parts)), segments)


def flat(rewards: Sequence[float | None], tree_id: bytes = b"t" * 32) -> TreeView:
    """Return a completion for each reward."""
    return planted([leaf(r) for r in rewards], tree_id).view


def group(*views: TreeView) -> GroupTrees:
    return GroupTrees("g", list(views))


def value_of(planted: Planted, node_N: Any, segment: int) -> float:
    """Return the advantage of the first node of a segment."""
    wanted = planted.segments[segment].id
    return float(node_N[next(n.index for n in planted.view.nodes if n.segment.id == wanted)])


def copied(twig: Twig) -> Twig:
    return replace(twig, children=[copied(c) for c in twig.children])


# -- random groups
# ------------------------------------------------------------------------------------------

_rewards = st.sampled_from([0.0, 1.0, 0.5, -1.0, 1.0, 0.0])


@st.composite
def twigs(draw: st.DrawFn, depth: int = 3) -> Twig:
    """Draw a random branch.

    It has chains and forks, tool answers, forced tokens, unscorable leaves, leaves that others
    continue from, and branches that no leaf uses.
    """
    kind = draw(st.sampled_from(["policy"] * 5 + ["tool", "forced"]))
    twig = Twig(
        tokens=draw(st.integers(1, 3)),
        kind=kind,
        logprob=-draw(st.sampled_from([0.25, 0.5, 1.0, 2.0])),
    )
    width = draw(st.integers(0, 3)) if depth else 0
    twig.children = [draw(twigs(depth - 1)) for _ in range(width)]
    end = draw(st.sampled_from(["scored"] * 5 + ["unscorable", "pruned"]))
    twig.leaf = (
        end != "pruned" if not twig.children else end == "scored" and draw(st.integers(0, 5)) == 0
    )
    twig.reward = draw(_rewards) if end == "scored" else None
    if not twig.leaf:
        twig.inner = draw(_rewards)
    twig.parts = {"used": float(draw(st.integers(0, 1)))}
    return twig


forests = st.lists(st.lists(twigs(), min_size=1, max_size=3), min_size=1, max_size=3)


def cut(twig: Twig, draw: Any) -> Twig:
    """Return the branch with longer segments cut in two without a fork, as by a policy change."""
    created = replace(twig, children=[cut(c, draw) for c in twig.children])
    if twig.tokens < 2 or not draw(st.booleans()):
        return created
    finish = draw(st.sampled_from([Finish.ABORTED, Finish.BOUNDARY]))
    head = Twig(tokens=1, kind=twig.kind, logprob=twig.logprob, finish=finish, named=twig.named)
    head.children = [replace(created, tokens=twig.tokens - 1)]
    return head


def words(children: Sequence[Twig]) -> None:
    """Fix each segment's token, so that a cut or another order changes no token."""
    for index, child in enumerate(children):
        child.word = 7 + index
        words(child.children)


def bare(twig: Twig) -> Twig:
    """Return the branch without own rewards."""
    return replace(twig, inner=None, children=[bare(c) for c in twig.children])


def leaves(estimator: Any, *views: TreeView) -> np.ndarray:
    """Return the advantage of each leaf."""
    return np.concatenate(estimator.estimate(group(*views)).leaf_G_L)


def nodes(estimator: Any, tree: Planted, *others: Planted) -> list[float]:
    """Return the advantage of each segment of the first tree but its prompt."""
    result = estimator.estimate(group(tree.view, *(o.view for o in others))).node_G_N
    return [value_of(tree, result[0], i) for i in range(1, len(tree.segments))]
