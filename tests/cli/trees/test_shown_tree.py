"""A tree as the report shows it: what follows without a fork is one line."""

import numpy as np

from banyan.facts import Facts
from banyan.render.node_runs import runs
from banyan.render.tree_text import _shortened
from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

ID = b"t" * 32


def grow(tree: Tree, parent: Segment | None, ordinal: int = 0) -> Segment:
    above, fork = (parent.id, len(parent)) if parent else (b"", 0)
    kind = Kind.POLICY if parent else Kind.PROMPT
    segment = Segment(
        ID, above, fork, ordinal, kind, np.array([1, 2], np.int32), np.zeros(2, np.float32)
    )
    tree.add(segment)
    return segment


def lines(view: TreeView, advantages: dict[int, float]) -> list[list[int]]:
    return [[node.index for node in run] for run in runs(view, advantages)]


def test_segments_without_a_fork_between_them_are_one_line() -> None:
    tree = Tree(ID)
    a = grow(tree, grow(tree, None))
    b, c = grow(tree, a, 0), grow(tree, a, 1)
    ends = [grow(tree, grow(tree, b)), grow(tree, c)]
    leaves = [Leaf(end.id, 2) for end in ends]
    view = TreeView(tree, leaves, dict.fromkeys(leaves, 1.0))
    # prompt 0, a 1, b 2 and its two below 3 and 4, c 5 and its one below 6
    assert lines(view, {}) == [[0], [1], [2, 3, 4], [5, 6]], "a alone: it forks, and begins"
    assert lines(view, {2: 0.5, 3: 0.5, 4: 0.25}) == [[0], [1], [2, 3], [4], [5, 6]]


def test_what_has_a_reward_of_its_own_ends_a_line() -> None:
    tree = Tree(ID)
    a = grow(tree, grow(tree, None))
    b = grow(tree, a)
    leaf = Leaf(b.id, 2)
    assert lines(TreeView(tree, [leaf], {leaf: 1.0}), {}) == [[0], [1, 2]]
    own = Facts(rewards={Leaf(a.id, 2): 0.5})
    assert lines(TreeView(tree, [leaf], {leaf: 1.0}, own), {}) == [[0], [1], [2]]
    both = [Leaf(a.id, 2), leaf]
    assert lines(TreeView(tree, both, dict.fromkeys(both, 1.0)), {}) == [[0], [1], [2]]


def test_a_text_keeps_its_end() -> None:
    assert _shortened("0123456789", None) == _shortened("0123456789", 10) == "0123456789"
    assert _shortened("0123456789", 4) == "…789"
