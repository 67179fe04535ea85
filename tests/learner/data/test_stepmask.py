"""The surest steps are masked, in exactly the configured share (DART-GUI, arXiv 2509.23866)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from banyan import registry
from banyan.credit.estimate import Credit, ScoredTree, estimate, over_batch
from banyan.credit.group_arrays import group_arrays
from banyan.errors import InvalidInput
from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from methods.advantages.grpo import Grpo
from services.learner.data import step_mask
from services.learner.data.prepare import build_lesson
from tests.methods.advantages.planting import group


def episodes(
    *entropies: list[float], number: int = 1, with_entropies: bool = True, right: int = 0
) -> ScoredTree:
    """Return a tree with a path per list, one of them right.

    A path is an action of two tokens with this mean entropy, an answer, and so on.
    """
    tree, ends = Tree(bytes([number]) * 32), []
    root = Segment(tree.tree_id, b"", 0, 0, Kind.PROMPT, [1, 2])
    tree.add(root)
    for ordinal, steps in enumerate(entropies):
        at = root
        for place, entropy in enumerate(steps):
            both = np.array([entropy - 0.25, entropy + 0.25]) if with_entropies else np.zeros(0)
            act = Segment(
                tree.tree_id,
                at.id,
                len(at),
                ordinal * (not place),
                Kind.POLICY,
                [3, 4],
                [-1.0, -1.0],
                entropies_T=both,
            )
            tree.add(act)
            at = Segment(tree.tree_id, act.id, 2, 0, Kind.TOOL, [5])
            tree.add(at)
        ends.append(Leaf(act.id, 2))
    return ScoredTree(tree, ends, {leaf: float(i == right) for i, leaf in enumerate(ends)})


TEN = [[0.5, 2.5, 4.5, 1.5, 3.5], [5.0, 1.0, 3.0, 2.0, 4.0]]


def estimated(*trees: ScoredTree, estimator: Any = None) -> Credit:
    return estimate("g", trees, estimator or Grpo(), lambda _tree, _leaf: False)


def factors_of(credit: Credit) -> list[list[float]]:
    """Return the factor of each action of each path, in order."""
    factors = credit.advantages.factor_G_N_T
    assert factors is not None
    return [
        [float(factors[index][i].mean()) for i in view.path(leaf) if view.nodes[i].trained]
        for index, view in enumerate(credit.group.trees)
        for leaf in range(len(view.leaves_L))
    ]


def test_of_ten_steps_eight_stay() -> None:
    (masked_credit,) = step_mask.masked([estimated(episodes(*TEN))], 0.2)
    assert factors_of(masked_credit) == [[0, 1, 1, 1, 1], [1, 0, 1, 1, 1]]
    trees = [episodes(TEN[0], number=1), episodes(TEN[1], number=2, right=1)]
    (apart,) = step_mask.masked([estimated(*trees)], 0.2)
    assert factors_of(apart) == factors_of(masked_credit), "a group's trees are compared as one"


def test_what_is_equal_stays_and_nothing_is_masked_unless_it_is_asked_for() -> None:
    plain = estimated(episodes([1.0, 1.0], [1.0, 1.0]))
    (masked_credit,) = step_mask.masked([plain], 0.5)
    assert factors_of(masked_credit) == [[1, 1], [1, 1]]
    assert step_mask.masked([plain], 0.0) == [plain]
    nothing = estimated(episodes([1.0], [2.0])), estimated(episodes([1.0]))
    assert step_mask.masked(nothing[1:], 0.5) == [nothing[1]], (
        "a group that teaches nothing stays as it is"
    )


def test_masked_tokens_have_no_advantage_and_the_others_theirs() -> None:
    def advantages(quantile: float) -> Any:
        lesson = build_lesson(
            [("g", [episodes(*TEN)])],
            Grpo(),
            lambda _t, _l: False,
            b"",
            400,
            entropy_quantile=quantile,
        )
        return lesson.sequences[0].advantage_P_T

    plain, masked = advantages(0.0), advantages(0.2)
    assert (plain != 0).all()
    np.testing.assert_array_equal(masked[0], plain[0] * np.repeat([0, 1, 1, 1, 1], 2))
    np.testing.assert_array_equal(masked[1], plain[1] * np.repeat([1, 0, 1, 1, 1], 2))


def test_a_shared_step_is_one_and_echos_factors_stay() -> None:
    """Steps of .5 (shared), 1, 3: the quantile of a half is 1."""
    tree = Tree(b"s" * 32)
    root = Segment(tree.tree_id, b"", 0, 0, Kind.PROMPT, [1, 2])
    trunk = Segment(tree.tree_id, root.id, 2, 0, Kind.POLICY, [3], [-1.0], entropies_T=[0.5])
    below = [
        Segment(tree.tree_id, trunk.id, 1, i, Kind.POLICY, [4], [-1.0], entropies_T=[2.0 * i + 1])
        for i in range(2)
    ]
    for segment in (root, trunk, *below):
        tree.add(segment)
    leaves = [Leaf(s.id, 1) for s in below]
    view = TreeView(tree, leaves, dict(zip(leaves, (1.0, 0.0), strict=True)))
    np.testing.assert_array_equal(
        step_mask.kept(group_arrays(group(view)), 0.5), (True, False, True, True)
    )
    echo = registry.build("optimise", "echo", {})
    scored = ScoredTree(tree, leaves, dict(zip(leaves, (1.0, 0.0), strict=True)))
    shaped = over_batch([estimated(scored, estimator=echo)], echo)
    (masked,) = step_mask.masked(shaped, 0.5)
    before, after = factors_of(shaped[0]), factors_of(masked)
    assert [path[0] for path in after] == [0, 0] and [path[1] for path in after] == [
        path[1] for path in before
    ]
    assert 1.0 not in [path[1] for path in before]


def test_steps_without_entropies_are_refused() -> None:
    silent = estimated(episodes([1.0], [2.0], with_entropies=False))
    with pytest.raises(
        InvalidInput, match=r"entropy_quantile needs the entropy of every sampled token.*\(torch\)"
    ):
        step_mask.masked([silent], 0.2)
    assert step_mask.masked(
        [replace(silent, advantages=replace(silent.advantages, skip="zero variance"))], 0.2
    )
