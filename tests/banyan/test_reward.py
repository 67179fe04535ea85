"""Places inside paths, by the tokens from the root to them, whatever segments name them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from banyan import reward
from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from tests.banyan.test_order import Grown, grown

Tokens = tuple[tuple[bytes, int], ...]


def above(tree: Tree) -> dict[bytes, tuple[bytes, int]]:
    return {segment.id: (segment.parent, segment.fork) for segment in tree}


def tokens(tree: Tree, place: Leaf) -> Tokens:
    """Return the tokens of a path, each by its segment and its index there."""
    kept = above(tree)
    result: list[tuple[bytes, int]] = []
    segment, end = place.segment, place.end
    while segment:
        result = [*((segment, at) for at in range(end)), *result]
        segment, end = kept[segment]
    return tuple(result)


def places(tree: Tree) -> st.SearchStrategy[list[Leaf]]:
    """Draw places anywhere, also before the first token of a segment."""
    item = st.builds(
        lambda segment, end: Leaf(segment.id, end), st.sampled_from(list(tree)), st.integers(0, 4)
    )
    return st.lists(item, unique=True, max_size=8)


@given(grown(), st.data())
def test_a_place_is_inside_where_its_tokens_begin_a_path_and_end_none(
    one: Grown, data: st.DataObject
) -> None:
    asked = data.draw(places(one.tree))
    ends = {tokens(one.tree, leaf) for leaf in one.leaves}
    expected = {
        place
        for place in asked
        if (path := tokens(one.tree, place))
        and path not in ends
        and any(end[: len(path)] == path for end in ends)
    }
    result = reward.inner(asked, one.leaves, above(one.tree))
    assert set(result) == expected
    for place, at in result.items():
        assert at.end > 0 and tokens(one.tree, at) == tokens(one.tree, place)
        for leaf in one.leaves:
            path = tokens(one.tree, leaf)
            assert reward.passing([at], leaf, above(one.tree)) == (
                path[: len(tokens(one.tree, at))] == tokens(one.tree, at)
            )


@given(grown(), st.data())
def test_places_have_one_name_if_their_tokens_are_the_same(one: Grown, data: st.DataObject) -> None:
    asked = data.draw(places(one.tree))
    names = {place: reward.settled(place, above(one.tree)) for place in asked}
    for place in asked:
        for other in asked:
            assert (names[place] == names[other]) == (
                tokens(one.tree, place) == tokens(one.tree, other)
            )


def test_the_name_of_a_place_before_first_tokens_is_the_last_token_above_them() -> None:
    tree = Tree(b"t" * 32, [Segment(b"t" * 32, b"", 0, 0, Kind.PROMPT, np.arange(4))])
    last = tree.root
    for fork in (4, 3, 0, 0):  # the last two begin where the second was forked
        assert last is not None
        last = Segment(b"t" * 32, last.id, fork, 0, Kind.POLICY, np.arange(4), -np.ones(4))
        tree.add(last)
    first, second = list(tree)[1:3]
    assert last is not None and second.parent == first.id
    assert reward.settled(Leaf(last.id, 0), above(tree)) == Leaf(first.id, 3)
