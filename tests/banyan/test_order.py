"""One order of segments and places: that of a depth-first walk, in whatever order rows came."""

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from banyan import order
from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_to_wire, leaves_from_wire, segment_to_wire

TREE = b"t" * 32


@dataclass(frozen=True)
class Grown:
    """Tree, and the ends of some of its segments."""

    tree: Tree
    leaves: list[Leaf]


@st.composite
def grown(draw: st.DrawFn) -> Grown:
    """Draw segments of four tokens, forked anywhere, and leaves anywhere in them."""
    tree = Tree(TREE, [Segment(TREE, b"", 0, 0, Kind.PROMPT, np.arange(4))])
    for number in range(draw(st.integers(0, 9))):
        parent = draw(st.sampled_from(list(tree)))
        fork = draw(st.integers(0, 4)) if parent.parent else 4
        ordinal = sum(child.fork == fork for child in tree.children.get(parent.id, ()))
        tree.add(
            Segment(TREE, parent.id, fork, ordinal, Kind.POLICY, np.full(4, number), -np.ones(4))
        )
    places = st.builds(
        lambda s, end: Leaf(s.id, end), st.sampled_from(list(tree)), st.integers(1, 4)
    )
    return Grown(tree, draw(st.lists(places, unique=True, max_size=8)))


def walked(tree: Tree) -> list[bytes]:
    """Return the segments in the order of a walk: a parent, then its children by fork and
    ordinal."""

    def below(segment: Segment) -> list[bytes]:
        children = sorted(tree.children.get(segment.id, ()), key=lambda s: (s.fork, s.ordinal))
        return [segment.id, *(item for child in children for item in below(child))]

    assert tree.root is not None
    return below(tree.root)


@given(grown(), st.randoms())
def test_places_sort_as_a_walk_meets_them_in_whatever_order_they_come(
    one: Grown, rng: random.Random
) -> None:
    segments = list(one.tree)
    rng.shuffle(segments)
    paths = order.paths(segments)
    assert sorted(paths, key=paths.__getitem__) == walked(one.tree)
    met = walked(one.tree)
    expected = sorted(one.leaves, key=lambda leaf: (met.index(leaf.segment), leaf.end))
    assert sorted(one.leaves, key=lambda leaf: order.at(paths, leaf.segment, leaf.end)) == expected


@given(grown(), st.randoms())
def test_a_message_has_its_leaves_in_that_order_however_it_was_written(
    one: Grown, rng: random.Random
) -> None:
    leaves = [leaf_to_wire(leaf) for leaf in one.leaves]
    rng.shuffle(leaves)
    message = tree_pb2.Tree(
        spec=tree_pb2.TreeSpec(tree_id=TREE),
        segments=[segment_to_wire(s) for s in one.tree],
        leaves=leaves,
    )
    met = walked(one.tree)
    assert leaves_from_wire(message) == sorted(
        one.leaves, key=lambda leaf: (met.index(leaf.segment), leaf.end)
    )


@given(grown())
def test_a_segment_whose_parent_is_not_there_counts_as_a_root(one: Grown) -> None:
    lone = [segment for segment in one.tree if segment.parent]
    paths = order.paths(lone)
    assert paths.keys() == {segment.id for segment in lone}
    assert all(bool(paths[s.id]) == (s.parent in paths) for s in lone)
