"""Trees and their views: hand-made ones, and random ones against a path-by-path reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import order
from banyan.errors import InvalidInput
from banyan.facts import Facts
from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

ID = b"t" * 32


def prompt(tree: Tree, tokens: list[int]) -> Segment:
    segment = Segment(ID, b"", 0, 0, Kind.PROMPT, np.array(tokens, np.int32))
    tree.add(segment)
    return segment


def grow(tree: Tree, parent: Segment, fork: int, ordinal: int, tokens: list[int]) -> Segment:
    logprobs = -0.1 * np.arange(1, len(tokens) + 1, dtype=np.float32)
    segment = Segment(ID, parent.id, fork, ordinal, Kind.POLICY, np.array(tokens, np.int32), logprobs)
    tree.add(segment)
    return segment


def test_nodes_are_cut_at_forks_and_ends() -> None:
    tree = Tree(ID)
    root = prompt(tree, [1, 2, 3])
    a = grow(tree, root, 3, 0, [4, 5, 6, 7])
    b = grow(tree, root, 3, 1, [8])
    c = grow(tree, a, 2, 0, [9, 10])
    leaves = [Leaf(a.id, 3), Leaf(b.id, 1), Leaf(c.id, 2)]
    view = TreeView(tree, leaves, {leaves[0]: 1.0, leaves[2]: 0.0})
    assert [node.tokens_T.tolist() for node in view.nodes] == [[1, 2, 3], [4, 5], [6], [9, 10], [8]]
    assert [view.path(i) for i in range(3)] == [[0, 1, 2], [0, 4], [0, 1, 3]]
    assert view.wasted_tokens == 1  # token 7 lies beyond every fork and end
    assert view.nodes[1].value == 0.5 and view.nodes[1].paths == 2
    assert np.isnan(view.nodes[4].value) and view.scored_L == [0, 2]
    assert [n.prefix_len for n in view.nodes] == [0, 3, 5, 5, 3]


def test_what_does_not_fit_is_refused() -> None:
    tree = Tree(ID)
    root = prompt(tree, [1, 2])
    grow(tree, root, 2, 0, [3])
    with pytest.raises(InvalidInput, match="taken"):
        grow(tree, root, 2, 0, [4])
    with pytest.raises(InvalidInput, match="beyond"):
        grow(tree, root, 3, 0, [4])
    with pytest.raises(InvalidInput, match="parent"):
        tree.add(Segment(ID, b"x" * 32, 0, 0, Kind.POLICY, np.array([1]), np.array([-1.0])))
    with pytest.raises(InvalidInput, match="leaf"):
        TreeView(tree, [Leaf(root.id, 9)], {})
    with pytest.raises(InvalidInput, match="twice"):
        TreeView(tree, [Leaf(root.id, 2), Leaf(root.id, 2)], {})


@st.composite
def grown(draw: st.DrawFn) -> tuple[Tree, list[Leaf], dict[Leaf, float | None]]:
    tree = Tree(ID)
    segments = [prompt(tree, list(range(1, draw(st.integers(1, 4)) + 1)))]
    for number in range(draw(st.integers(0, 7))):
        parent = draw(st.sampled_from(segments))
        fork = draw(st.integers(0 if parent.parent else 1, len(parent)))
        length = draw(st.integers(1, 4))
        segments.append(grow(tree, parent, fork, number, [100 * (number + 1) + i for i in range(length)]))
    ends = {Leaf(s.id, draw(st.integers(1, len(s)))) for s in segments[1:]}
    leaves = sorted(ends, key=lambda leaf: (leaf.segment, leaf.end))
    rewards = {leaf: draw(st.one_of(st.none(), st.floats(-1, 1))) for leaf in leaves}
    return tree, leaves, rewards


@settings(max_examples=200, deadline=None)
@given(grown())
def test_nodes_come_as_segments_do_but_that_later_forks_come_first(
    made: tuple[Tree, list[Leaf], dict[Leaf, float | None]],
) -> None:
    """The order of nodes from that of segments: forks of one segment the other way round, and nothing else."""
    tree, leaves, rewards = made
    view, paths = TreeView(tree, leaves, rewards), order.paths(tree)
    place = {s.id: [(-fork, ordinal) for fork, ordinal in paths[s.id]] for s in tree}
    assert view.nodes == sorted(view.nodes, key=lambda node: (place[node.segment.id], node.start))
    for node in view.nodes:
        below = [n.index for n in view.nodes[node.index :] if node.index in above(view, n.index)]
        assert below == list(range(node.index, node.index + len(below))), "all below a node is one run"


def above(view: TreeView, node: int) -> list[int]:
    """A node and those over it."""
    return [node, *above(view, view.nodes[node].parent)] if node >= 0 else []


def test_what_forks_before_a_segments_first_token_is_not_among_what_is_below_it() -> None:
    """Attention takes the run behind a node for what sees it (services/learner/packing/unroll.py)."""
    tree = Tree(ID)
    root = prompt(tree, [1, 2])
    a = grow(tree, root, 2, 0, [3, 4])
    before, after = grow(tree, a, 0, 0, [5, 6]), grow(tree, a, 2, 0, [7, 8])
    leaves = [Leaf(before.id, 2), Leaf(after.id, 2)]
    view = TreeView(tree, leaves, dict.fromkeys(leaves, 1.0))
    assert [node.tokens_T.tolist() for node in view.nodes] == [[1, 2], [3, 4], [7, 8], [5, 6]]
    assert [node.parent for node in view.nodes] == [-1, 0, 1, 0]


def test_no_order_of_nodes_is_that_of_places() -> None:
    """Why there are two: (a, 4) is before what forks at (a, 2), that before what forks at (a, 4), which is below (a, 4)."""
    tree = Tree(ID)
    root = prompt(tree, [1])
    a = grow(tree, root, 1, 0, [2, 3, 4, 5])
    middle, end = grow(tree, a, 2, 0, [6]), grow(tree, a, 4, 0, [7])
    leaves = [Leaf(a.id, 4), Leaf(middle.id, 1), Leaf(end.id, 1)]
    paths = order.paths(tree)
    assert sorted(leaves, key=lambda leaf: order.at(paths, leaf.segment, leaf.end)) == leaves
    view = TreeView(tree, leaves, {})
    assert view.leaf_node_L[0] < view.leaf_node_L[2] < view.leaf_node_L[1] and view.path(2)[:-1] == view.path(0)


@settings(max_examples=200, deadline=None)
@given(grown())
def test_a_random_tree_equals_its_paths(made: tuple[Tree, list[Leaf], dict[Leaf, float | None]]) -> None:
    tree, leaves, rewards = made
    view = TreeView(tree, leaves, rewards)
    for index, leaf in enumerate(leaves):
        tokens = np.concatenate([view.nodes[n].tokens_T for n in view.path(index)])
        assert tokens.tolist() == tree.prefix_tokens(leaf.segment, leaf.end).tolist()
        logprobs = np.concatenate([view.nodes[n].logprobs_T for n in view.path(index)])
        assert np.array_equal(logprobs, tree.prefix_logprobs(leaf.segment, leaf.end))
    for node in view.nodes:
        below = [i for i in view.scored_L if node.index in view.path(i)]
        assert node.paths == len(below)
        assert node.reward_sum == pytest.approx(sum(view.rewards_L[i] for i in below))
        assert all(view.nodes[child].parent == node.index and child > node.index for child in node.children)
    used = {(n.segment.id, t) for n in view.nodes for t in range(n.start, n.stop)}
    assert len(used) == view.unique_tokens  # no token is in two nodes


def test_two_leaves_at_one_token_are_refused_also_where_one_is_an_empty_piece_there() -> None:
    tree = Tree(ID)
    root = prompt(tree, [1, 2])
    empty = grow(tree, grow(tree, root, 2, 0, []), 0, 0, [])
    view = TreeView(tree, [Leaf(empty.id, 0)], {})
    assert view.path(0) == [0] and view.nodes[0].leaf == 0
    with pytest.raises(InvalidInput, match="same token"):
        TreeView(tree, [Leaf(root.id, 2), Leaf(empty.id, 0)], {})


def test_a_node_ends_where_a_place_has_a_reward_of_its_own_unless_no_leaf_is_beyond_it() -> None:
    tree = Tree(ID)
    root = prompt(tree, [1])
    a, unused = grow(tree, root, 1, 0, [2, 3, 4, 5]), grow(tree, root, 1, 1, [6])
    places = Leaf(a.id, 1), Leaf(a.id, 3), Leaf(a.id, 4), Leaf(unused.id, 1), Leaf(unused.id, 0)
    view = TreeView(tree, [Leaf(a.id, 3)], {}, Facts(rewards=dict.fromkeys(places, 1.0)))
    assert [node.tokens_T.tolist() for node in view.nodes] == [[1], [2], [3, 4]]
    assert view.wasted_tokens == 2


@st.composite
def bushy(draw: st.DrawFn) -> tuple[Tree, list[Leaf]]:
    """Also empty segments, such as nobody uses, and forks before a first token. No two leaves end at one token."""
    tree, ends, leaves = Tree(ID), set[tuple[int, ...]](), list[Leaf]()
    segments = [prompt(tree, [1, 2])]
    for number in range(1, draw(st.integers(1, 8))):
        parent = draw(st.sampled_from(segments))
        fork = draw(st.integers(0 if parent.parent else 1, len(parent)))
        length = draw(st.integers(0, 3))
        segments.append(grow(tree, parent, fork, number, [100 * number + i for i in range(length)]))
    for segment in draw(st.lists(st.sampled_from(segments), min_size=1, max_size=5)):
        leaf = Leaf(segment.id, draw(st.integers(0 if segment.parent else 1, len(segment))))
        tokens = tuple(tree.prefix_tokens(leaf.segment, leaf.end).tolist())
        if tokens not in ends:
            ends.add(tokens)
            leaves.append(leaf)
    return tree, leaves


@settings(max_examples=300, deadline=None)
@given(bushy())
def test_a_token_sees_its_path_and_nothing_else(made: tuple[Tree, list[Leaf]]) -> None:
    """As attention does: what comes before it, of the nodes in whose run it is."""
    tree, leaves = made
    view = TreeView(tree, leaves, {})
    last = [max(n.index for n in view.nodes if node.index in above(view, n.index)) for node in view.nodes]
    seen: dict[int, list[int]] = {}
    for node in view.nodes:
        before = [n for n in view.nodes[: node.index] if last[n.index] >= node.index]
        tokens = [token for n in before for token in n.tokens_T.tolist()]
        for token in node.tokens_T.tolist():
            assert token not in seen, "a token is in one node"
            seen[token] = tokens = [*tokens, token]
        assert node.depth == len(before) and node.prefix_len == len(tokens) - len(node)
    used = set[int]()
    for leaf in leaves:
        path = tree.prefix_tokens(leaf.segment, leaf.end).tolist()
        assert all(seen[token] == path[: place + 1] for place, token in enumerate(path))
        used |= set(path)
    assert seen.keys() == used | {token for token in seen if token in (1, 2)}  # the root is there whole where nobody ends
