"""A step trains on at most so many groups: the first that teach (TreePO's group filter)."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from services.learner.data import most_groups
from services.learner.data.prepare import batch_advantages, build_lesson


def scored(number: int, *rewards: float) -> ScoredTree:
    """Return a tree of a token a path."""
    tree, values = Tree(bytes([number]) * 32), dict[Leaf, float | None]()
    root = Segment(tree.tree_id, b"", 0, 0, Kind.PROMPT, [1])
    tree.add(root)
    for ordinal, reward in enumerate(rewards):
        end = Segment(tree.tree_id, root.id, 1, ordinal, Kind.POLICY, [2], [-1.0])
        tree.add(end)
        values[Leaf(end.id, 1)] = reward
    return ScoredTree(tree, list(values), values)


def batch(*rewards: tuple[float, ...]) -> list[tuple[str, list[ScoredTree]]]:
    return [(f"g{i}", [scored(i, *values)]) for i, values in enumerate(rewards)]


def reasons(groups: Any, most: int, estimator: str = "grpo") -> list[str]:
    built = registry.build("optimise", estimator, {})
    credits = batch_advantages(groups, built, lambda _tree, _leaf: False, 0.0, most)
    return [credit.advantages.skip for credit in credits]


GROUPS = batch((1, 1), (1, 0), (0, 0), (0, 1), (1, 0), (1, 0))


def test_the_first_groups_that_teach_are_trained_on() -> None:
    same, beyond = "zero variance", most_groups.BEYOND
    assert reasons(GROUPS, 2) == [same, "", same, "", beyond, beyond]
    assert reasons(GROUPS, 0) == [same, "", same, "", "", ""]
    assert reasons(GROUPS, 9) == reasons(GROUPS, 0)


def test_sequences_and_metrics_are_those_of_the_kept_groups() -> None:
    def lesson(most: int) -> Any:
        estimator = registry.build("optimise", "grpo", {})
        never = lambda _tree, _leaf: False  # noqa: E731
        return build_lesson(GROUPS, estimator, never, b"", 64, most_groups=most)

    capped, all_of_them = lesson(2), lesson(0)
    assert capped.metrics["groups_skipped"] == 4
    assert all_of_them.metrics["groups_skipped"] == 2
    assert capped.metrics["leaves"] == all_of_them.metrics["leaves"] == 12
    assert capped.metrics["trained_path_tokens"] * 2 == all_of_them.metrics["trained_path_tokens"]


def test_whitening_over_the_batch_leaves_out_what_is_not_trained_on() -> None:
    """Two kept groups of one sign of mean: with a third one the batch's mean would be another."""
    groups = batch((1, 0), (1, 0), (5, 0))
    built = registry.build("optimise", "reinforce++", {})
    credits = batch_advantages(groups, built, lambda _tree, _leaf: False, 0.0, 2)
    alone = batch_advantages(groups[:2], built, lambda _tree, _leaf: False)
    for credit, other in zip(credits[:2], alone, strict=True):
        np.testing.assert_array_equal(credit.advantages.leaf_G_L[0], other.advantages.leaf_G_L[0])
    assert credits[2].advantages.skip == most_groups.BEYOND


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from((0.0, 1.0)), min_size=2, max_size=4), max_size=8),
    st.integers(1, 9),
)
def test_no_more_than_the_most_teach_and_none_is_lost(
    rewards: list[list[float]], most: int
) -> None:
    groups = batch(*map(tuple, rewards))
    free, capped = reasons(groups, 0), reasons(groups, most)
    assert len(capped) == len(free)
    assert capped.count("") == min(most, free.count(""))
    teaching = [i for i, reason in enumerate(free) if not reason]
    assert [i for i, reason in enumerate(capped) if not reason] == teaching[:most]
