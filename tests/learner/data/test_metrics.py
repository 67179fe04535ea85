"""Metrics of a batch's sampling, on trees made by hand; and their cost, next to nothing."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from banyan.credit.estimate import Credit
from banyan.facts import Facts
from banyan.plugins import GroupTrees
from banyan.segment import Finish, Kind, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from methods.advantages.grpo import Grpo
from methods.advantages.mc_grpo import McGrpo
from services.learner.data import metrics

Parts = dict[str, float]


def tree(
    completions: Sequence[Sequence[int]],
    rewards: Sequence[float | None],
    *,
    steps: Sequence[int] = (),
    texts: Sequence[str] = (),
    finish: Finish = Finish.STOP,
    parts: Sequence[Parts] = (),
    number: int = 0,
) -> TreeView:
    """Return a prompt of three tokens with a completion of one segment per reward."""
    grown_tree = Tree(bytes([number]) * 32)
    root = Segment(grown_tree.tree_id, b"", 0, 0, Kind.PROMPT, np.array([1, 2, 3], np.int32))
    grown_tree.add(root)
    leaves = []
    for i, tokens in enumerate(completions):
        segment = Segment(
            grown_tree.tree_id,
            root.id,
            3,
            i,
            Kind.POLICY,
            np.array(tokens, np.int32),
            np.zeros(len(tokens), np.float32),
            policy_step=steps[i] if steps else 0,
            text=texts[i] if texts else "",
            finish=finish,
        )
        grown_tree.add(segment)
        leaves.append(Leaf(segment.id, len(tokens)))
    known = Facts(parts=dict(zip(leaves, parts, strict=False)))
    return TreeView(grown_tree, leaves, dict(zip(leaves, rewards, strict=True)), known)


def credit(*views: TreeView, name: str = "g") -> Credit:
    group = GroupTrees(name, list(views))
    return Credit(group, Grpo().estimate(group))


def age(segment: Segment) -> int:
    return 10 - segment.policy_step


def test_shares_of_groups_whose_rewards_are_all_the_same() -> None:
    two = ([7], [8])
    batch = [
        credit(tree(two, (1.0, 1.0))),
        credit(tree(two, (0.0, 0.0))),
        credit(tree(two, (0.5, 0.5))),
        credit(tree(two, (0.0, 1.0))),
        credit(tree(two, (1.0, None))),  # cannot be compared: of no group
    ]
    measured = metrics.of_batch(batch, age)
    assert measured["zero_variance_share"] == 3 / 4
    assert measured["all_right_share"] == measured["all_wrong_share"] == 1 / 4
    assert measured["unscorable_share"] == pytest.approx(1 / 10)
    assert "zero_variance_share" not in metrics.of_batch(batch[4:], age)


def test_the_largest_advantage_is_of_groups_that_teach() -> None:
    """MC-GRPO (arXiv 2601.22582): a MAD of 0 makes (1 − 0) / 1e-3 · 3 / 1; GRPO makes 1.1547."""
    view, flat = tree(([7], [8], [9]), (1.0, 0.0, 0.0)), tree(([7], [8]), (1.0, 1.0))
    small = McGrpo(floor=0.1).estimate(GroupTrees("g", [view]))
    large = Credit(GroupTrees("g", [view]), McGrpo(floor=0.0).estimate(GroupTrees("g", [view])))
    assert metrics.of_batch([credit(flat), credit(view)], age)["advantage_max"] == pytest.approx(
        1.1547, abs=1e-4
    )
    assert metrics.of_batch([credit(view), large], age)["advantage_max"] == pytest.approx(3000)
    assert metrics.of_batch([Credit(large.group, small)], age)["advantage_max"] == pytest.approx(
        3 / 0.101
    )
    assert "advantage_max" not in metrics.of_batch([credit(flat)], age)


def test_answers_are_those_of_the_last_tag_and_completions_are_tokens() -> None:
    texts = (
        "<answer>1</answer> no <answer> 4 </answer>",
        "so <answer>4</answer>",
        "<answer>5</answer>",
        "<answer>5</answer>",
    )
    same = tree(([7, 8], [9], [5, 5], [5, 5]), (0.0, 0.0, 1.0, 1.0), texts=texts)
    measured = metrics.of_batch([credit(same)], age)
    assert measured["distinct_answers"] == 2 / 4
    assert measured["duplicate_share"] == 1 / 4


def test_without_texts_an_answer_is_its_tokens_over_all_trees_of_a_group() -> None:
    group = credit(tree(([7], [8]), (0.0, 1.0)), tree(([7], [9]), (0.0, 1.0), number=1))
    measured = metrics.of_batch([group], age)
    assert measured["distinct_answers"] == 3 / 4
    assert measured["duplicate_share"] == 1 / 4


def test_a_leaf_inside_a_segment_is_told_by_its_tokens() -> None:
    view = tree(([7, 8, 9], [7, 8]), (0.0, 1.0), texts=("a b c", "a b"))
    inside = Leaf(view.leaves_L[0].segment, 2)
    cut = TreeView(view.tree, [inside, view.leaves_L[1]], {inside: 0.0, view.leaves_L[1]: 1.0})
    measured = metrics.of_batch([credit(cut)], age)
    assert measured["duplicate_share"] == 1 / 2
    assert measured["completion_tokens"] == 2.0


def test_lengths_and_what_the_limit_ended() -> None:
    views = [
        tree(([1], [1, 2, 3], [1, 2]), (0.0, 1.0, 0.0)),
        tree(([1] * 10,), (0.0,), finish=Finish.LENGTH, number=1),
    ]
    measured = metrics.of_batch([credit(view) for view in views], age)
    assert measured["completion_tokens"] == 4.0
    assert measured["completion_tokens_median"] == 2.5
    assert 9.0 < measured["completion_tokens_p99"] < 10.0
    assert measured["length_limited_share"] == 1 / 4


def test_a_leaf_before_the_cut_was_not_ended_by_the_limit() -> None:
    view = tree(([1] * 10,), (0.0,), finish=Finish.LENGTH)
    whole = view.leaves_L[0]
    early = Leaf(whole.segment, 4)
    both = TreeView(view.tree, [early, whole], {early: 0.0, whole: 1.0})
    assert metrics.of_batch([credit(both)], age)["length_limited_share"] == 1 / 2


def test_form_is_what_scorers_say_of_it() -> None:
    parts: list[Parts] = [
        {"raised": 1.0},
        {"format": 0.0},
        {"format": 1.0},
        {"majority_ratio": 0.5},
    ]
    view = tree(([1], [2], [3], [4]), (0.0, 0.0, 1.0, 1.0), parts=parts)
    assert metrics.of_batch([credit(view)], age)["malformed_share"] == 2 / 4


def test_staleness_counts_each_sampled_segment_once() -> None:
    measured = metrics.of_batch(
        [
            credit(
                tree(([1], [2], [3], [4], [5]), (0.0, 1.0, 0.0, 0.0, 1.0), steps=(10, 10, 9, 7, 0))
            )
        ],
        age,
    )
    assert [measured[f"staleness_{name}"] for name in ("0", "1", "2_3", "4_7", "8_up")] == [
        0.4,
        0.2,
        0.2,
        0.0,
        0.2,
    ]
    assert measured["staleness_mean"] == pytest.approx((0 + 0 + 1 + 3 + 10) / 5)
    assert measured["staleness_max"] == 10.0


def test_trees_that_replay_put_in_are_not_stale() -> None:
    fresh, old = tree(([1],), (1.0,), steps=(9,)), tree(([2],), (0.0,), steps=(0,), number=1)
    measured = metrics.of_batch([credit(fresh), credit(old)], age, {old.tree.tree_id})
    assert (measured["staleness_mean"], measured["staleness_max"]) == (1.0, 1.0)
    assert "staleness_mean" not in metrics.of_batch([credit(old)], age, {old.tree.tree_id})


def test_replay_counts_trained_path_tokens_of_trees_that_teach() -> None:
    fresh, old = (
        credit(tree(([1], [2]), (0.0, 1.0))),
        credit(tree(([1, 1, 1], [2, 2, 2]), (0.0, 1.0), number=1)),
    )
    flat = credit(tree(([1, 1], [2, 2]), (1.0, 1.0), number=2))
    assert metrics.of_batch([fresh, old, flat], age)["replay_share"] == 0.0
    assert (
        metrics.of_batch([fresh, old, flat], age, (b"\1" * 32, b"\2" * 32))["replay_share"] == 6 / 8
    )
    assert metrics.of_batch([flat], age, (b"\2" * 32,))["replay_share"] == 0.0


def test_nothing_says_nothing() -> None:
    assert metrics.of_batch([], age) == {"replay_share": 0.0}


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def test_512_leaves_of_64_tokens_cost_little() -> None:
    rng = np.random.default_rng(0)
    batch = [
        credit(
            tree(
                [list(rng.integers(0, 999, 64)) for _ in range(16)],
                [float(i % 2) for i in range(16)],
                number=n,
            )
        )
        for n in range(32)
    ]
    seconds = min(_seconds(lambda: metrics.of_batch(batch, age)) for _ in range(3))
    print(f"{seconds * 1000:.1f} ms")
    assert seconds < 0.25  # of a step that takes seconds
