"""Pure decisions: groups of a batch, age of segments, due checkpoints, division of trees."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.credit.estimate import ScoredTree
from banyan.segment import Kind
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from methods.advantages.grpo import Grpo
from services.learner.checkpoints.checkpoint import due
from services.learner.data.metrics import of_batch
from services.learner.data.prepare import build_lesson, recorded_stale, summary
from services.learner.data.selection import Ready, assemble
from services.learner.data.staleness import History
from services.learner.packing import packing, unroll
from services.learner.step_report import numbers
from services.learner.training.trainer import StepReport
from services.learner.training.trainer_thread import Timed


def ready(*ordinals: int) -> list[Ready]:
    return [Ready(f"g{o}", o, (bytes([o]),)) for o in ordinals]


def chosen(groups: list[Ready] | None) -> list[int] | None:
    return None if groups is None else [g.ordinal for g in groups]


def test_a_batch_is_full_and_in_order() -> None:
    assert assemble(ready(4, 1), None, 3, False) is None
    assert chosen(assemble(ready(4, 1, 2), None, 3, False)) == [1, 2, 4]
    assert chosen(assemble(ready(1, 2, 4), 0, 3, False)) == [1, 2, 4]


def test_a_deterministic_batch_passes_nothing_over() -> None:
    assert assemble(ready(1, 2, 4), 3, 3, True) is None
    assert chosen(assemble(ready(1, 2, 4), 5, 3, True)) == [1, 2, 4]  # 3 was dropped
    assert chosen(assemble(ready(1, 2, 4), None, 3, True)) == [1, 2, 4]


def test_a_group_without_trees_is_no_group() -> None:
    assert assemble([Ready("g0", 0, ()), *ready(1)], None, 2, False) is None


@given(st.sets(st.integers(0, 30)), st.none() | st.integers(0, 30), st.integers(1, 5))
def test_deterministic_batches_are_a_prefix(
    ordinals: set[int], oldest_open: int | None, size: int
) -> None:
    batch = chosen(assemble(ready(*ordinals), oldest_open, size, True))
    if batch is not None:
        assert batch == sorted(ordinals)[:size]
        assert oldest_open is None or all(o < oldest_open for o in batch if o != oldest_open)


def test_age_counts_steps_and_a_rewind_counts_from_the_common_ancestor(forest: Any) -> None:
    tree = Tree(b"a" * 32)
    root = forest.segment(tree, None, [1], kind=Kind.PROMPT)
    live = forest.segment(tree, root, [2], policy=b"live", step=3)
    lost = forest.segment(tree, root, [3], policy=b"lost", step=5, ordinal=1)
    history = History(live={b"live": 3})
    history.note_abandoned([(1, 6), (1, 4), (1, 5)])
    assert history.age(root, 9) == 0
    assert history.age(live, 5) == 2
    assert history.age(lost, 5) == 2  # steps 4 to 6 were abandoned: it counts as step 3
    history.live[b"lost"] = 5  # the replay made the same weights again
    assert history.age(lost, 5) == 0


def test_a_path_is_as_old_as_the_tokens_it_holds(forest: Any) -> None:
    """The second branch leaves the old segment before its first token, and was sampled anew."""
    tree = Tree(b"t" * 32)
    root = forest.segment(tree, None, [1], kind=Kind.PROMPT)
    old = forest.segment(tree, root, [2, 3], step=1)
    fresh = forest.segment(tree, old, [4], fork=0, step=4)
    history = History()
    assert history.age_of_path(tree, Leaf(old.id, 2), 5) == 4
    assert history.age_of_path(tree, Leaf(fresh.id, 1), 5) == 1
    assert history.age_of_path(tree, Leaf(old.id, 0), 5) == 0


def test_checkpoints_cost_at_most_a_twentieth() -> None:
    assert not due(0, 5, 4, since_s=100, cost_s=6)
    assert due(0, 5, 4, since_s=121, cost_s=6)
    assert not due(0, 5, 5, since_s=1000, cost_s=6)
    assert due(3, 6, 3, since_s=0, cost_s=100)
    assert not due(3, 5, 3, since_s=1000, cost_s=0)


def spread(forest: Any, leaves: int = 6, prompt: int = 10, length: int = 5) -> TreeView:
    tree = Tree(b"d" * 32)
    root = forest.segment(tree, None, list(range(prompt)), kind=Kind.PROMPT)
    segments = [forest.segment(tree, root, [i] * length, ordinal=i) for i in range(leaves)]
    ends = [Leaf(s.id, length) for s in segments]
    return TreeView(tree, ends, {leaf: float(i % 2) for i, leaf in enumerate(ends)})


def tree_training_example(forest: Any, branches: Any) -> TreeView:
    """Return a prompt of 6 with a branch of 4 that forks into 3 and 5, and a branch of 7.

    branches: both in some order, each with the tokens of its nodes.
    """
    tree = Tree(b"p" * 32)
    root, ends = forest.segment(tree, None, [1] * 6, kind=Kind.PROMPT), []
    for ordinal, sizes in enumerate(branches):
        first = forest.segment(tree, root, [ordinal] * sizes[0], ordinal=ordinal)
        below = [
            forest.segment(tree, first, [9] * size, ordinal=i) for i, size in enumerate(sizes[1:])
        ]
        ends += [Leaf(s.id, len(s)) for s in below or [first]]
    return TreeView(tree, ends, dict.fromkeys(ends, 1.0))


@pytest.mark.parametrize(
    ("branches", "saved"),
    [
        (((4, 3, 5), (7,)), {15: 0, 17: 0, 18: 10, 24: 10, 25: 16, 28: 16, 29: 16}),
        (((7,), (4, 3, 5)), {17: 0, 18: 10, 19: 10, 20: 6, 24: 6, 25: 16, 29: 16}),
    ],
)
def test_what_sharing_saves_of_the_example_of_tree_training(
    forest: Any, branches: Any, saved: dict[int, int]
) -> None:
    """Tree Training (arXiv 2511.00413): N = 25 of 41, POR .3902, bound 1.64, g(P) = 3, g(x) = 2.

    Its search for one prefix to share saves S(x) = 1 · 10 from 18 on and S(P) = 2 · 6 from 29 on,
    all of the hierarchy 16 from 25 on; ours is no search.
    """
    view = tree_training_example(forest, branches)
    assert (view.unique_tokens, view.path_tokens) == (25, 41)
    assert 1 - view.unique_tokens / view.path_tokens == pytest.approx(0.3902, abs=1e-4)
    assert view.path_tokens / view.unique_tokens == pytest.approx(1.64)
    assert {len(node): node.paths for node in view.nodes} == {6: 3, 4: 2, 3: 1, 5: 1, 7: 1}
    for budget, expected in saved.items():
        runs = unroll.divide(view, range(3), budget)
        sizes = [sum(len(view.nodes[i]) for i in unroll.nodes_of(view, run)) for run in runs]
        assert max(sizes) <= budget and 41 - sum(sizes) == expected, budget


def test_a_tree_above_the_budget_repeats_its_trunk_and_says_so(forest: Any) -> None:
    view = spread(forest)
    assert unroll.divide(view, range(6), 40) == [[0, 1, 2, 3, 4, 5]]
    assert unroll.divide(view, range(6), 25) == [[0, 1, 2], [3, 4, 5]]
    assert unroll.divide(view, range(6), 3) == [[i] for i in range(6)]
    tree = ScoredTree(
        view.tree, view.leaves_L, dict(zip(view.leaves_L, view.rewards_L, strict=True))
    )
    lesson = build_lesson([("g", [tree])], Grpo(), lambda _tree, _leaf: False, b"now", 25)
    assert lesson.metrics["packed_tokens"] == 50
    assert lesson.metrics["repeated_tokens"] == 10
    assert lesson.metrics["unique_tokens"] == 40
    assert lesson.metrics["path_tokens"] == 90
    assert [len(sequence.token_U) for sequence in lesson.sequences] == [25, 25]


def test_a_batch_that_nobody_could_score_has_no_reward(forest: Any) -> None:
    view = spread(forest)
    for value, recorded in ((None, {}), (0.0, {"reward": 0.0})):
        tree = ScoredTree(view.tree, view.leaves_L, dict.fromkeys(view.leaves_L, value))
        lesson = build_lesson([("g", [tree])], Grpo(), lambda _tree, _leaf: False, b"now", 99)
        metrics = numbers(lesson, Timed(StepReport(applied=False), 0.0), 1)
        assert {name: metrics[name] for name in metrics if name == "reward"} == recorded
        assert metrics["unscorable_leaves"] == (6.0 if value is None else 0.0)


def test_a_loss_without_importance_weights_observes_no_share_of_them(
    forest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dashboard must tell no truncation apart from none truncated."""
    seen: dict[str, float] = {}
    monkeypatch.setattr(
        "services.learner.step_report.telemetry.observe",
        lambda name, value, **_: seen.update({name: value}),
    )
    view = spread(forest)
    tree = ScoredTree(view.tree, view.leaves_L, dict.fromkeys(view.leaves_L, 1.0))
    lesson = build_lesson([("g", [tree])], Grpo(), lambda _tree, _leaf: False, b"now", 99)
    plain, weighed = {"ess": 1.0}, {"ess": 1.0, "truncated_share": 0.25}
    numbers(lesson, Timed(StepReport(applied=True, measures=plain), 0.0), 1)
    assert "banyan.step.ess" in seen and "banyan.step.truncated_share" not in seen
    numbers(lesson, Timed(StepReport(applied=True, measures=weighed), 0.0), 1)
    assert seen["banyan.step.truncated_share"] == 0.25
    assert "banyan.step.rejected_share" not in seen


def test_a_stale_leaf_is_not_one_that_could_not_be_scored(forest: Any) -> None:
    """Six leaves: one has no score, two are too old; a sixth, not half of them, is unscorable."""
    view = spread(forest)
    rewards: dict[Leaf, float | None] = dict(zip(view.leaves_L, (1.0, 0.0) * 3, strict=True))
    rewards[view.leaves_L[0]] = None
    tree, old = ScoredTree(view.tree, view.leaves_L, rewards), view.leaves_L[1:3]
    lesson = build_lesson([("g", [tree])], Grpo(), lambda _tree, leaf: leaf in old, b"now", 99)
    counted = [lesson.metrics[name] for name in ("leaves", "unscorable_leaves", "stale_leaves")]
    assert counted == [6.0, 1.0, 2.0]
    assert lesson.metrics["reward"] == pytest.approx(1 / 3)  # of 0, 1, 0: the third leaf was old
    shares = of_batch(lesson.credits, lambda _segment: 0)
    assert shares["unscorable_share"] == pytest.approx(1 / 6)


def test_a_tree_counts_unique_and_path_tokens(forest: Any) -> None:
    """P 6 → x 4 → leaves 3, 5; leaf y 7: 25 unique tokens for 41 on paths."""
    tree = Tree(b"k" * 32)
    root = forest.segment(tree, None, [0] * 6, kind=Kind.PROMPT)
    x = forest.segment(tree, root, [1] * 4)
    ends = [
        forest.segment(tree, x, [2] * 3),
        forest.segment(tree, x, [3] * 5, ordinal=1),
        forest.segment(tree, root, [4] * 7, ordinal=1),
    ]
    leaves = [Leaf(s.id, len(s)) for s in ends]
    view = TreeView(tree, leaves, dict.fromkeys(leaves, 1.0))
    part = unroll.unroll(view, range(3), np.ones(3), None, b"now")
    assert (len(part), view.path_tokens) == (25, 41)
    assert sorted(len(p.token_T) for p in part.paths) == [7, 7, 9]


def test_siblings_that_begin_alike_share_a_prediction(forest: Any) -> None:
    tree = Tree(b"q" * 32)
    root = forest.segment(tree, None, [1, 2], kind=Kind.PROMPT)
    leaves = [Leaf(forest.segment(tree, root, [7, 8 + i], ordinal=i).id, 2) for i in range(3)]
    view = TreeView(tree, leaves, dict.fromkeys(leaves, 1.0))
    sequence = packing.pack([unroll.unroll(view, range(3), np.ones(3), None, b"now")], 99)[0]
    assert len(sequence.token_E) == 4  # one 7 after the prompt, three continuations
    assert len(sequence.place_R) == 4
    assert (sequence.index_P_T[:, 0] == sequence.index_P_T[0, 0]).all()


def test_the_summary_names_skips_and_stale_leaves(forest: Any) -> None:
    view = spread(forest)
    tree = ScoredTree(
        view.tree, view.leaves_L, dict(zip(view.leaves_L, view.rewards_L, strict=True))
    )
    flat = forest.flat([1, 1])
    same = ScoredTree(flat.tree, flat.leaves_L, dict(zip(flat.leaves_L, [1.0, 1.0], strict=True)))
    lesson = build_lesson(
        [("g", [tree]), ("h", [same])],
        Grpo(),
        lambda _tree, leaf: leaf == view.leaves_L[2],
        b"now",
        99,
    )
    recorded = summary(lesson, 4)
    assert recorded["groups"][1]["skip"] == "zero variance"
    assert recorded_stale(recorded) == {view.leaves_L[2]}
    assert lesson.metrics["groups_skipped"] == 1
    assert lesson.metrics["stale_leaves"] == 1
    # Neither the stale leaf's tokens nor the skipped group's.
    assert sum(len(s.token_U) for s in lesson.sequences) == 35
    fresh = [0, 1, 1, 0, 1, 1, 1]
    assert recorded["metrics"]["reward"] == pytest.approx(np.mean(fresh))
    assert recorded["metrics"]["reward_std"] == pytest.approx(np.std(fresh))
    groups = [[0, 1, 1, 0, 1], [1, 1]]  # of the first, one leaf is stale
    by_group = np.mean([np.std(rewards) for rewards in groups])
    assert recorded["metrics"]["reward_group_std"] == pytest.approx(by_group)
