"""Estimators against hand-computed numbers of their papers' formulas."""

from typing import Any

import numpy as np
import pytest

from banyan.credit import estimate as credit
from banyan.credit.whitening import whiten
from banyan.errors import InvalidInput
from banyan.plugins import Advantages, GroupTrees
from banyan.segment import Kind
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from methods.advantages.grpo import Grpo
from methods.advantages.treepo import TreePO
from tests.methods.advantages.planting import leaf, leaves, planted


def group(*views: TreeView) -> GroupTrees:
    return GroupTrees("g", views)


def test_grpo_divides_by_the_sample_standard_deviation(forest: Any) -> None:
    leaf_L = Grpo().estimate(group(forest.flat([1, 0, 0, 0]))).leaf_G_L[0]
    np.testing.assert_allclose(leaf_L, (1.5, -0.5, -0.5, -0.5), atol=1e-5)
    leaf_L = Grpo().estimate(group(forest.flat([1, 0, 0, 1]))).leaf_G_L[0]
    np.testing.assert_allclose(np.abs(leaf_L), np.full(4, 0.8660), atol=1e-4)


def test_grpo_without_scale_is_dr_grpo(forest: Any) -> None:
    leaf_L = Grpo(scale="none").estimate(group(forest.flat([1, 0, 0, 0]))).leaf_G_L[0]
    np.testing.assert_allclose(leaf_L, (0.75, -0.25, -0.25, -0.25))


def test_grpo_compares_over_all_trees_of_the_group(forest: Any) -> None:
    trees = forest.flat([1, 0]), forest.flat([0, 0], b"u" * 32)
    first, second = Grpo().estimate(group(*trees)).leaf_G_L
    np.testing.assert_allclose((*first, *second), (1.5, -0.5, -0.5, -0.5), atol=1e-5)


def test_unscorable_leaves_take_no_part(forest: Any) -> None:
    leaf_L = Grpo().estimate(group(forest.flat([1, None, 0, 0, 0]))).leaf_G_L[0]
    assert np.isnan(leaf_L[1])
    np.testing.assert_allclose(leaf_L[[0, 2, 3, 4]], (1.5, -0.5, -0.5, -0.5), atol=1e-5)


@pytest.mark.parametrize("rewards", [[1, 1, 1], [0.3, 0.1 + 0.2], [1], [None, 1], [None, None]])
@pytest.mark.parametrize("estimator", [Grpo(), Grpo(scale="none"), TreePO()])
def test_a_group_without_a_spread_teaches_nothing_and_says_why(
    forest: Any, rewards: list[float | None], estimator: Any
) -> None:
    result = estimator.estimate(group(forest.flat(rewards)))
    assert result.skip
    scored = [r is not None for r in rewards]
    assert (result.leaf_G_L[0][scored] == 0).all()
    assert np.isnan(result.leaf_G_L[0][~np.array(scored)]).all()


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("average", (0.625, -0.375, -0.125, -0.125)),
        ("group_size", (0.6667, -0.3333, -0.1667, -0.1667)),
    ],
)
def test_treepo_compares_in_each_subtree(
    forest: Any, weighting: str, expected: tuple[float, ...]
) -> None:
    leaf_L = TreePO(weighting=weighting).estimate(group(forest.two_level([1, 0, 0, 0]))).leaf_G_L[0]
    np.testing.assert_allclose(leaf_L, expected, atol=1e-4)


def test_treepo_may_skip_subtrees_without_a_spread(forest: Any) -> None:
    leaf_L = TreePO(require_spread=True).estimate(group(forest.two_level([1, 0, 0, 0]))).leaf_G_L[0]
    np.testing.assert_allclose(leaf_L, (0.625, -0.375, -0.25, -0.25))


def test_treepo_takes_reward_from_overlong_answers_and_leaves_constant_groups_out() -> None:
    trees = [
        planted([leaf(r, tokens=n) for r, n in ((1, 10), (right, 9), (right, 1))]).view
        for right in (0, 1)
    ]
    found = leaves(TreePO(longest=10, buffer=2, whiten=False), trees[0])
    np.testing.assert_allclose(found, (1 / 6, -1 / 3, 1 / 6), atol=1e-9)  # of 0, -½ and 0
    assert TreePO(longest=10, buffer=2).estimate(GroupTrees("g", [trees[1]])).skip
    with pytest.raises(ValueError, match="need each other"):
        TreePO(longest=10)


def test_treepo_ignores_a_cut_that_is_no_fork(forest: Any) -> None:
    tree = Tree(b"c" * 32)
    root = forest.segment(tree, None, [1, 2], kind=Kind.PROMPT)
    head = forest.segment(tree, root, [3])
    more = forest.segment(tree, head, [4])  # ABORTED and gone on: no decision of the tree policy
    ends = [forest.segment(tree, more, [5 + i], ordinal=i) for i in range(2)]
    other = forest.segment(tree, root, [9], ordinal=1)
    leaves = [Leaf(s.id, 1) for s in (*ends, other)]
    cut = (
        TreePO()
        .estimate(group(TreeView(tree, leaves, dict(zip(leaves, (1.0, 0.0, 0.0), strict=True)))))
        .leaf_G_L[0]
    )
    np.testing.assert_allclose(cut, ((2 / 3 + 0.5) / 2, (-1 / 3 - 0.5) / 2, -1 / 3))


def test_whitening_counts_tokens() -> None:
    values = np.array([0.625, -0.375, -0.125, -0.125])
    np.testing.assert_allclose(
        whiten(values, np.ones(4)), (1.443, -0.866, -0.289, -0.289), atol=1e-3
    )
    np.testing.assert_allclose(
        whiten(values, np.full(4, 1e6)), (1.667, -1, -0.333, -0.333), atol=1e-3
    )


def credits_of(forest: Any, *rewards: list[float | None]) -> list[credit.Credit]:
    result = []
    for index, values in enumerate(rewards):
        view = forest.flat(values, bytes([index]) * 32)
        tree = credit.ScoredTree(
            view.tree, view.leaves_L, dict(zip(view.leaves_L, values, strict=True))
        )
        result.append(
            credit.estimate(f"g{index}", [tree], Grpo(scale="none"), lambda _tree, _leaf: False)
        )
    return result


def test_the_batch_is_whitened_over_the_groups_that_teach(forest: Any) -> None:
    before = credits_of(forest, [1, 0, 0], [1, 1], [1, None, 0])
    after = credit.whitened(before)
    taught = np.concatenate([c.advantages.leaf_G_L[0] for c in after if not c.advantages.skip])
    taught = np.repeat(taught[np.isfinite(taught)], 2)  # each path has two trained tokens
    assert taught.mean() == pytest.approx(0, abs=1e-12)
    assert taught.std(ddof=1) == pytest.approx(1, abs=1e-6)
    assert after[1] is before[1]
    assert np.isnan(after[2].advantages.leaf_G_L[0][1])


def test_a_stale_leaf_leaves_its_group_before_advantages(forest: Any) -> None:
    view = forest.flat([5, 1, 0, 0, 0])
    tree = credit.ScoredTree(
        view.tree, view.leaves_L, dict(zip(view.leaves_L, [5.0, 1.0, 0.0, 0.0, 0.0], strict=True))
    )
    result = credit.estimate("g", [tree], Grpo(), lambda _tree, leaf: leaf == view.leaves_L[0])
    assert result.stale == (view.leaves_L[0],)
    np.testing.assert_allclose(
        result.advantages.leaf_G_L[0][1:], (1.5, -0.5, -0.5, -0.5), atol=1e-5
    )
    assert np.isnan(result.advantages.leaf_G_L[0][0])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            ZeroDivisionError("of mine"),
            r"raised ZeroDivisionError: of mine \(.*test_advantages.py, line \d+\) of group g",
        ),
        (42, "answers with Advantages, this one of group g with 42"),
        (Advantages((np.full(2, np.nan),)), "are NaN for all leaves"),
    ],
)
def test_what_an_estimator_may_not_answer_is_said(forest: Any, answer: Any, says: str) -> None:
    class Wrong:
        def estimate(self, group: GroupTrees) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    view = forest.flat([1, 0])
    tree = credit.ScoredTree(
        view.tree, view.leaves_L, dict(zip(view.leaves_L, [1.0, 0.0], strict=True))
    )
    with pytest.raises(InvalidInput, match=says):
        credit.estimate("g", [tree], Wrong(), lambda _tree, _leaf: False)


def test_a_reward_whose_square_is_no_number_is_refused(forest: Any) -> None:
    with pytest.raises(InvalidInput, match=r"a reward of 1e\+200 is beyond ±1e\+100"):
        forest.flat([1e200, 0])


def test_an_estimator_that_answers_nonsense_is_named(forest: Any) -> None:
    class Wrong:
        def estimate(self, group: GroupTrees) -> Advantages:
            return Advantages((np.zeros(7),))

    view = forest.flat([1, 0])
    tree = credit.ScoredTree(view.tree, view.leaves_L, {})
    with pytest.raises(InvalidInput, match="2 leaves"):
        credit.estimate("g", [tree], Wrong(), lambda _tree, _leaf: False)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="std or none"):
        Grpo(scale="batch")
    with pytest.raises(ValueError, match="average or group_size"):
        TreePO(weighting="sum")
