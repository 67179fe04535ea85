"""Replay: the request, the join, the weights, and a killed learner that replays the same again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from banyan.credit.estimate import ScoredTree
from banyan.errors import InvalidInput
from banyan.recipe import Replay
from banyan.recipe_loader.load import resolve
from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from methods.advantages.grpo import Grpo
from services.learner import losses
from services.learner.data import metrics, replay
from services.learner.data.prepare import build_lesson
from services.learner.data.replay import Replayed
from services.learner.losses.aggregate import Totals
from tests.learner.hand_made_tokens import tokens

DECOUPLED = {"loss": "decoupled", "loss_settings": {"importance": {"level": "token", "cap": 1.0}}}


def scored(forest: Any, rewards: Sequence[float | None], number: int = 1) -> ScoredTree:
    view = forest.flat(list(rewards), bytes([number]) * 32)
    return ScoredTree(view.tree, view.leaves_L, dict(zip(view.leaves_L, rewards, strict=True)))


def never(_tree: Any, _leaf: Leaf) -> bool:
    return False


# -- the request --


def test_a_group_failed_if_none_of_its_scored_leaves_is_right(forest: Any) -> None:
    for rewards, expected in (
        ([0, 0], True),
        ([0, 0.5], False),
        ([None, 0], True),
        ([None, None], False),
    ):
        assert replay.failed([scored(forest, rewards)], 0.5) is expected
    assert not replay.failed([scored(forest, [0]), scored(forest, [1], 2)], 0.5)


def test_a_batch_asks_for_its_share_of_groups_and_for_those_that_failed(forest: Any) -> None:
    fresh = [("g0", [scored(forest, [0, 0])]), ("g1", [scored(forest, [0, 1], 2)])]
    row_digests = {"g0": b"r" * 32, "g1": b"s" * 32}
    both = replay.request(
        Replay(fraction=0.5, rescue=True, max_age=3),
        seed=7,
        batch=9,
        fresh=fresh,
        row_digests=row_digests,
    )
    assert (both.groups, both.failed, both.first_batch) == (2, (("g0", b"r" * 32),), 6)
    assert (
        replay.request(
            Replay(fraction=0.5), seed=7, batch=9, fresh=fresh, row_digests=row_digests
        ).failed
        == ()
    )
    assert (
        replay.request(
            Replay(rescue=True), seed=7, batch=9, fresh=fresh, row_digests=row_digests
        ).groups
        == 0
    )
    assert (
        replay.request(
            Replay(rescue=True), seed=7, batch=9, fresh=fresh, row_digests=row_digests
        ).first_batch
        == 0
    )
    half = [(f"g{n}", fresh[0][1]) for n in range(256)]  # DOTS + RR: σ B fresh of B = 512, σ = 0.5
    assert (
        replay.request(Replay(fraction=0.5), seed=0, batch=1, fresh=half, row_digests={}).groups
        == 256
    )
    assert (
        replay.request(Replay(fraction=0.01), seed=0, batch=1, fresh=fresh, row_digests={}).groups
        == 1
    )


# -- the join --


def test_what_replays_nothing_is_the_fresh_batch(forest: Any) -> None:
    """SAPO (Gensyn): J = 0 is a learner by itself; a group of equal rewards teaches nothing."""
    fresh = [("g0", [scored(forest, [1, 0, 0, 0])]), ("g1", [scored(forest, [1, 1, 1, 1], 2)])]
    assert replay.joined(fresh, (), {}) == fresh
    advantages = [
        credit.advantages for credit in build_lesson(fresh, Grpo(), never, b"now", 400).credits
    ]
    np.testing.assert_allclose(advantages[0].leaf_G_L[0], (1.5, -0.5, -0.5, -0.5), atol=1e-5)
    assert not advantages[0].skip and advantages[1].skip == "zero variance"


def test_a_stored_success_makes_a_hopeless_group_teach(forest: Any) -> None:
    """DART-GUI (arXiv 2509.23866): eight zeros become (1, 0 × 7), A = (+2.475, −0.354 × 7)."""
    fresh, stored = (
        aged(forest, 1, *([(1, step)] for step in (9, 8, 7, 2, 6, 5, 4, 3))),
        scored(forest, [0, 1, 0], 2),
    )
    success = Replayed(stored.tree.tree_id, "g", stored.leaves[1])
    groups = replay.joined([("g", [fresh])], [success], {stored.tree.tree_id: stored})
    (credit,) = build_lesson(groups, Grpo(), never, b"now", 400).credits
    advantage = np.concatenate(credit.advantages.leaf_G_L)
    assert advantage == pytest.approx([-0.354] * 7 + [2.475], abs=1e-3)
    assert credit.group.trees[0].leaves_L == [
        *fresh.leaves[:3],
        *fresh.leaves[4:],
    ]  # the oldest one made room
    assert credit.replayed == {1} and credit.group.trees[1].leaves_L == [stored.leaves[1]]
    assert build_lesson([("g", [fresh])], Grpo(), never, b"now", 400).credits[0].advantages.skip


def aged(forest: Any, number: int, *ages: Sequence[tuple[int, int]]) -> ScoredTree:
    """Return a tree of leaves with rewards of 0.

    ages: epoch and step of the weights of each segment of each leaf's path, from the top.
    """
    tree = Tree(bytes([number]) * 32)
    prompt = forest.segment(tree, None, [1, 2, 3], kind=Kind.PROMPT)
    leaves = []
    for ordinal, path in enumerate(ages):
        last = prompt
        for depth, (epoch, step) in enumerate(path):
            last = forest.segment(
                tree, last, [5], ordinal=0 if depth else ordinal, epoch=epoch, step=step
            )
        leaves.append(Leaf(last.id, 1))
    return ScoredTree(tree, leaves, dict.fromkeys(leaves, 0.0))


@pytest.mark.parametrize(
    ("trees", "gone"),
    [
        ([[[(1, 9)], [(1, 8)]], [[(1, 7)], [(1, 8)]]], (1, 0)),
        ([[[(1, 9)], [(1, 8)], [(1, 8)]], [[(1, 8)]]], (0, 1)),  # the first of several
        (
            [[[(1, 5)], [(1, 9), (1, 9)], [(1, 4), (1, 9)]]],
            (0, 2),
        ),  # as old as the oldest weights on its path
        ([[[(2, 3)], [(1, 7)]]], (0, 1)),  # a later learner counts its steps from its checkpoint on
    ],
)
def test_a_success_takes_the_place_of_the_oldest_leaf(
    forest: Any, trees: Any, gone: tuple[int, int]
) -> None:
    """DART-GUI (arXiv 2509.23866): the oldest trajectory gives way, wherever it is."""
    fresh = [aged(forest, number, *ages) for number, ages in enumerate(trees, 1)]
    stored = scored(forest, [1], 9)
    success = Replayed(stored.tree.tree_id, "g", stored.leaves[0])
    ((_, members),) = replay.joined([("g", fresh)], [success], {stored.tree.tree_id: stored})
    left = {tree.tree.tree_id: list(tree.leaves) for tree in members}
    oldest = fresh[gone[0]].leaves[gone[1]]
    for tree in fresh:
        assert left.get(tree.tree.tree_id, []) == [leaf for leaf in tree.leaves if leaf != oldest]
    assert members[-1].leaves == stored.leaves and members[-1].replayed


def test_leaves_that_are_too_old_neither_fail_nor_give_a_place_up(forest: Any) -> None:
    """DART-GUI (arXiv 2509.23866): stale ones leave first, then the oldest of the others."""
    fresh, stored = aged(forest, 1, [(1, 1)], [(1, 5)], [(1, 3)]), scored(forest, [1], 2)
    old = fresh.leaves[0]
    success = Replayed(stored.tree.tree_id, "g", stored.leaves[0])
    ((_, trees),) = groups = replay.joined(
        [("g", [fresh])], [success], {stored.tree.tree_id: stored}, lambda _tree, leaf: leaf == old
    )
    assert list(trees[0].leaves) == fresh.leaves[:2]
    (credit,) = build_lesson(groups, Grpo(), lambda _tree, leaf: leaf == old, b"now", 400).credits
    assert credit.stale == (old,) and [len(leaf_L) for leaf_L in credit.advantages.leaf_G_L] == [
        2,
        1,
    ]
    right = replace(fresh, rewards={**fresh.rewards, old: 1.0})
    assert not replay.failed([right], 0.5) and replay.failed(
        [right], 0.5, lambda _tree, leaf: leaf == old
    )
    assert not replay.failed([fresh], 0.5, lambda _tree, _leaf: True)


def test_a_leaf_without_a_score_gives_no_place_up(forest: Any) -> None:
    fresh, stored = aged(forest, 1, [(1, 1)], [(1, 5)], [(1, 3)]), scored(forest, [1], 2)
    fresh = replace(fresh, rewards={**fresh.rewards, fresh.leaves[0]: None})
    left, joined = replay.rescued([fresh], stored)
    assert list(left.leaves) == fresh.leaves[:2] and joined is stored


def test_a_tree_without_a_leaf_left_leaves_the_group(forest: Any) -> None:
    fresh, stored = (
        [scored(forest, [None]), scored(forest, [0], 2), scored(forest, [0, 0], 3)],
        scored(forest, [1], 4),
    )
    success = Replayed(stored.tree.tree_id, "g", stored.leaves[0])
    ((_, trees),) = replay.joined([("g", fresh)], [success], {stored.tree.tree_id: stored})
    assert [(t.tree.tree_id[0], len(t.leaves), t.replayed) for t in trees] == [
        (1, 1, False),
        (3, 2, False),
        (4, 1, True),
    ]


def test_groups_replayed_whole_come_after_the_fresh_ones_and_count_no_reward(forest: Any) -> None:
    fresh, stored = scored(forest, [0, 1]), [scored(forest, [1, 1], 2), scored(forest, [1, 0], 3)]
    replayed = [Replayed(t.tree.tree_id, "old") for t in stored]
    groups = replay.joined([("new", [fresh])], replayed, {t.tree.tree_id: t for t in stored})
    assert [(name, len(trees)) for name, trees in groups] == [("new", 1), ("old", 2)]
    lesson = build_lesson(groups, Grpo(), never, b"now", 400)
    assert lesson.metrics["reward"] == 0.5  # of what the policy of today did
    assert lesson.metrics["groups"] == 2
    measured = metrics.of_batch(lesson.credits, never_old, {t.tree.tree_id for t in stored})
    assert measured["replay_share"] == pytest.approx(4 / 6)


def never_old(_segment: Segment) -> int:
    return 0


def test_the_age_of_replayed_trees_is_not_looked_at(forest: Any) -> None:
    fresh, stored = scored(forest, [0, 1]), scored(forest, [1, 0], 2)
    groups = replay.joined(
        [("new", [fresh])], [Replayed(stored.tree.tree_id, "old")], {stored.tree.tree_id: stored}
    )
    credits = build_lesson(groups, Grpo(), lambda _tree, _leaf: True, b"now", 400).credits
    assert (len(credits[0].stale), len(credits[1].stale)) == (2, 0) and not credits[
        1
    ].advantages.skip


# -- the weights --


def test_the_numbers_of_the_decoupled_loss() -> None:
    """μ = .2, π_old = .4, π = .5, ε = .2: r = 2.5 in [1.6, 2.4], −2.4 for A = 1, +2.5 for A = −1.

    DART-GUI (arXiv 2509.23866): the cap of 1 takes e^0.2 = 1.221 to 1 and leaves e^−0.5 = 0.607.
    """
    loss = losses.build("decoupled", {"dual_clip": 0.0})
    for advantage, expected in ((1.0, -2.4), (-1.0, 2.5)):
        hand_made = tokens(
            [[np.log(0.5)]],
            behaviour=[[np.log(0.2)]],
            proximal=[[np.log(0.4)]],
            advantage=[[advantage]],
        )
        assert float(loss.compute(hand_made, Totals(1, 1))[0]) == pytest.approx(expected)
    capped = losses.build("decoupled", DECOUPLED["loss_settings"])  # type: ignore[arg-type]
    for now, drawn, weight in ((-1.0, -1.2, 1.0), (-1.5, -1.0, 0.607)):
        hand_made = tokens([[now]], behaviour=[[drawn]], proximal=[[now]], advantage=[[1.0]])
        assert float(capped.compute(hand_made, Totals(1, 1))[0]) == pytest.approx(-weight, abs=1e-3)


# -- recipes --


@pytest.mark.parametrize(
    ("optimise", "fine"),
    [
        ({}, False),
        ({"loss": "gspo"}, False),
        ({"loss": "dpo"}, False),
        ({"loss": "decoupled"}, True),
        ({"loss": "decoupled", "loss_settings": {"importance": None}}, False),
        ({"loss": "ppo-clip", "loss_settings": {"importance": {}}}, True),
    ],
)
def test_replay_needs_a_loss_that_corrects(optimise: dict[str, Any], fine: bool) -> None:
    data = {
        "name": "r",
        "model": "m",
        "task": {"name": "arithmetic"},
        "optimise": optimise,
        "replay": {"fraction": 0.5},
    }
    if fine:
        assert resolve(data).replay == Replay(fraction=0.5)
        return
    with pytest.raises(
        InvalidInput, match=r"does not correct for that: set optimise\.loss: decoupled"
    ):
        resolve(data)


def test_replay_of_nothing_or_by_nobody_is_refused() -> None:
    data: dict[str, Any] = {
        "name": "r",
        "model": "m",
        "task": {"name": "arithmetic"},
        "optimise": {"loss": "decoupled"},
    }
    with pytest.raises(InvalidInput, match="replays nothing"):
        resolve({**data, "replay": {}})
    with pytest.raises(InvalidInput, match="no replay plugin 'nobody'"):
        resolve({**data, "replay": {"fraction": 0.5, "policy": "nobody"}})
    with pytest.raises(InvalidInput, match="nearest must be a whole number"):
        resolve({**data, "replay": {"fraction": 0.5, "settings": {"nearest": 0.5}}})
