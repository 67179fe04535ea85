"""Groups that teach nothing: where the loss counts them, it is that of their zeros in the batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from banyan.credit.estimate import ScoredTree
from banyan.plugins import Advantages, GroupTrees
from banyan.recipe import Optimise
from banyan.segment import Kind, Origin, Segment
from banyan.tree import Leaf, Tree
from methods.advantages.grpo import Grpo
from services.learner import losses
from services.learner.data import most_groups
from services.learner.data.prepare import Lesson, build_lesson
from services.learner.model.load import prepare
from services.learner.packing.silent import NONE, Silent, silent
from services.learner.training.trainer import Trainer, settle
from tests.learner.mixed_batches import exact

Groups = list[tuple[str, list[ScoredTree]]]


@pytest.fixture(autouse=True)
def _settled() -> None:
    settle(1)


class Zeros(Grpo):
    """GRPO whose groups without a spread are trained on, with their zeros."""

    def estimate(self, group: GroupTrees) -> Advantages:
        return replace(super().estimate(group), skip="")


def groups_of(forest: Any, *rewards: Sequence[float]) -> Groups:
    """Return groups of one tree each; every other tree forks inside its answer."""
    made: Groups = []
    for number, own in enumerate(rewards, 1):
        kind = forest.flat if number % 2 else forest.two_level
        view = kind(list(own), bytes([number]) * 32)
        scores = dict(zip(view.leaves_L, own, strict=True))
        made.append((f"g{number}", [ScoredTree(view.tree, view.leaves_L, scores)]))
    return made


def lesson_of(groups: Groups, estimator: Grpo, settings: dict[str, Any], **more: Any) -> Lesson:
    targets = losses.build("reinforce", settings).targets
    return build_lesson(
        groups, estimator, lambda _tree, _leaf: False, b"now", 400, targets=targets, **more
    )


def stepped(model: Any, lesson: Lesson, settings: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the loss of a step on a lesson, and the weights after it."""
    optimise = Optimise(loss="reinforce", loss_settings=settings, learning_rate=0.02, clip_norm=1e9)
    trainer = Trainer(prepare(exact(model)), optimise, torch.float64)
    report = trainer.step(lesson.sequences, 0, lesson.sizes, lesson.silent)
    return report.loss, dict(trainer.masters.exact())


MIXED = ([0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0], [1.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "token-mean"},
        {"mode": "token-mean", "count": "nodes"},
        {"mode": "seq-mean-token-mean"},
        {"mode": "seq-mean-token-sum"},
        {"mode": "seq-mean-token-sum-const", "length": 5},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_counted_they_make_the_step_of_a_batch_that_holds_their_zeros(
    tiny_llama: Callable[..., Any], forest: Any, settings: dict[str, Any]
) -> None:
    groups, counted = groups_of(forest, *MIXED), {**settings, "count_silent": True}
    found = stepped(tiny_llama(1), lesson_of(groups, Grpo(), counted), counted)
    wanted = stepped(tiny_llama(1), lesson_of(groups, Zeros(), settings), settings)
    left_out = stepped(tiny_llama(1), lesson_of(groups, Grpo(), settings), settings)
    assert found[0] == pytest.approx(wanted[0], rel=1e-9)
    assert abs(found[0]) < 0.8 * abs(left_out[0])
    for name, weight in wanted[1].items():
        assert torch.allclose(found[1][name], weight, rtol=0, atol=1e-9), name


def test_they_are_counted_as_a_step_counts_what_it_trains_on(forest: Any) -> None:
    groups = groups_of(forest, *MIXED)
    lesson = lesson_of(groups, Grpo(), {"count_silent": True})
    trained = lesson_of(groups, Zeros(), {})
    every = [sequence.mask_P_T for sequence in trained.sequences]
    own = [sequence.mask_P_T for sequence in lesson.sequences]
    assert lesson.silent.tokens == sum(m.sum() for m in every) - sum(m.sum() for m in own) > 0
    assert lesson.silent.paths == sum(map(len, every)) - sum(map(len, own)) == 6
    shares = [sum(float(s.share_P_T.sum()) for s in each.sequences) for each in (trained, lesson)]
    assert lesson.silent.unique == pytest.approx(shares[0] - shares[1])
    assert lesson.silent.unique < lesson.silent.tokens  # one of these trees forks inside


def test_by_default_nothing_is_counted(forest: Any) -> None:
    assert lesson_of(groups_of(forest, *MIXED), Grpo(), {}).silent == NONE


def test_groups_beyond_those_that_a_step_trains_on_are_not_counted(forest: Any) -> None:
    lesson = lesson_of(groups_of(forest, *MIXED), Grpo(), {"count_silent": True}, most_groups=1)
    skips = [credit.advantages.skip for credit in lesson.credits]
    assert skips[3] == most_groups.BEYOND
    assert lesson.silent.paths == 6


def test_a_leaf_without_a_reward_is_not_counted(forest: Any) -> None:
    groups = groups_of(forest, [0.0, 1.0], [1.0, 1.0, 1.0, 1.0])
    tree = groups[1][1][0]
    unscored = {**tree.rewards, tree.leaves[0]: None}
    groups[1][1][0] = replace(tree, rewards=unscored)
    assert lesson_of(groups, Grpo(), {"count_silent": True}).silent.paths == 3


def test_a_group_without_any_reward_is_not_counted(forest: Any) -> None:
    groups = groups_of(forest, [0.0, 1.0], [1.0, 1.0, 1.0, 1.0])
    tree = groups[1][1][0]
    groups[1][1][0] = replace(tree, rewards=dict.fromkeys(tree.leaves))
    assert lesson_of(groups, Grpo(), {"count_silent": True}).silent == NONE


@pytest.mark.parametrize("epochs", [1, 2])
def test_minibatches_share_them(tiny_llama: Callable[..., Any], forest: Any, epochs: int) -> None:
    """Two minibatches of one group each: each has half of what is silent beside it, each time."""
    settings = {"count_silent": True}
    lesson = lesson_of(groups_of(forest, *MIXED), Grpo(), settings, minibatches=2)
    seen: list[tuple[float, float]] = []
    optimise = Optimise(loss="reinforce", loss_settings=settings, learning_rate=0.02, epochs=epochs)
    trainer = Trainer(prepare(exact(tiny_llama(1))), optimise, torch.float64)
    compute = trainer.loss.compute

    def spied(tokens: Any, totals: Any) -> Any:
        seen.append((totals.tokens - float(tokens.mask_P_T.sum()), totals.paths))
        return compute(tokens, totals)

    object.__setattr__(trainer.loss, "compute", spied)
    trainer.step(lesson.sequences, 0, lesson.sizes, lesson.silent)
    half = lesson.silent.tokens / 2
    assert [tokens for tokens, _ in seen] == [half, half] * epochs
    assert [paths for _, paths in seen] == [3 + 3, 4 + 3] * epochs


def test_a_path_of_forced_tokens_counts_where_the_loss_trains_on_them(forest: Any) -> None:
    tree = Tree(b"f" * 32)
    root = forest.segment(tree, None, [1, 2, 3], kind=Kind.PROMPT)
    own = forest.segment(tree, root, [5, 6])
    given = Segment(
        tree.tree_id,
        parent=root.id,
        fork=len(root),
        ordinal=1,
        kind=Kind.FORCED,
        tokens_T=np.array([7], np.int32),
        origin=Origin.TEACHER,
    )
    tree.add(given)
    leaves = [Leaf(own.id, 2), Leaf(given.id, 1)]
    groups = groups_of(forest, [0.0, 1.0])
    groups.append(("f", [ScoredTree(tree, leaves, dict.fromkeys(leaves, 1.0))]))
    counted: dict[str, Any] = {"count_silent": True}
    assert lesson_of(groups, Grpo(), counted).silent == Silent(2.0, 1.0, 2.0)
    counted["forced"] = {"teacher": "policy"}
    assert lesson_of(groups, Grpo(), counted).silent == Silent(3.0, 2.0, 3.0)


def test_nothing_has_no_size() -> None:
    assert silent([]) == NONE
    assert Silent(4.0, 2.0, 3.0).share(2) == Silent(2.0, 1.0, 1.5)
    assert np.isfinite(NONE.share(3).tokens)
