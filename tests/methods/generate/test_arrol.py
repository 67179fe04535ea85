"""arrol (arXiv 2603.24840): numbers of the rule, its effect and saving, and the learner's view
of it."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import Branch, GrowthBudget
from banyan.segment import Finish
from banyan.signals import Signals
from banyan.tree import Leaf
from methods.generate.arrol.policy import Arrol
from methods.generate.arrol.survival import chances, drawn, fitted, survivors
from services.rollout.growth.grower import Grower
from tests.methods.generate.forests import Hand, asked, grow_anyhow
from tests.rollout.growing import engine, grow, shape, spec
from tests.rollout.growing import survivors as left_over

ARROL = "methods.generate.arrol.policy:Arrol"
EXAMPLE = [0.9] * 12 + [0.1] * 4


# -- the rule
# ------------------------------------------------------------------------------------------


def test_the_numbers_of_the_paper() -> None:
    """n = 16, 12 rollouts with p = .9 and 4 with .1, K = ρ = .5."""
    s = chances(EXAMPLE, 0.5, 0.5)
    up, down = 0.5 * 0.5 / 0.7, 0.5 * 0.5 / 0.3
    assert (round(up, 4), round(down, 4)) == (0.3571, 0.8333)
    assert (round(s[0], 4), round(s[-1], 4)) == (0.4048, 0.7857)
    assert sum(s) == pytest.approx(8.0) and fitted(s, 8) == pytest.approx(s)
    share = sum(x * p for x, p in zip(s, EXAMPLE, strict=True)) / sum(s)
    assert round(share, 3) == 0.586 and sum(EXAMPLE) / 16 == pytest.approx(0.700), (
        "random pruning leaves the mean as it is"
    )
    assert round(share * (1 - share), 3) == 0.243 and round(0.7 * 0.3, 3) == 0.210


def test_the_drawn_shares_are_those_of_the_chances() -> None:
    s = chances(EXAMPLE, 0.5, 0.5)
    kept = [drawn(s, EXAMPLE, u) for u in np.linspace(0.0, 1.0, 2000, endpoint=False)]
    assert {len(k) for k in kept} == {8}
    often = np.bincount(np.concatenate(kept), minlength=16) / len(kept)
    assert np.allclose(often, s, atol=2e-3)
    share = np.mean([np.mean([EXAMPLE[i] for i in k]) for k in kept])
    assert share == pytest.approx(0.586, abs=2e-3)


@pytest.mark.parametrize(
    ("right", "keep", "share"), [(12, 0.5, 0.5), (5, 0.5, 0.5), (9, 0.5, 0.25), (4, 0.25, 0.5)]
)
def test_a_perfect_head_gives_exactly_the_share_wanted(
    right: int, keep: float, share: float
) -> None:
    p = [1.0] * right + [0.0] * (16 - right)
    s = chances(p, keep, share)
    assert sum(s) == pytest.approx(16 * keep)
    assert sum(x for x, y in zip(s, p, strict=True) if y) / sum(s) == pytest.approx(share)


def test_where_there_are_too_few_all_of_them_stay() -> None:
    """Of 16, 2 are right where 4 are wanted: q⁺ = 1, and the rest comes from the others."""
    p = [1.0] * 2 + [0.0] * 14
    s = chances(p, 0.5, 0.5)
    assert s[:2] == [1.0, 1.0] and sum(s) == pytest.approx(2 + 14 * 0.25 / 0.875)
    assert sum(fitted(s, 8)) == pytest.approx(8.0) and fitted(s, 8)[0] == 1.0


@pytest.mark.parametrize("p", [[0.0] * 6, [1.0] * 6])
def test_where_all_are_sure_a_random_share_is_kept(p: list[float]) -> None:
    assert chances(p, 0.5, 0.5) == [0.5] * 6
    kept = [tuple(drawn([0.5] * 6, p, u)) for u in (0.1, 0.9)]
    assert {len(k) for k in kept} == {3} and kept[0] != kept[1]


def test_two_paths_stay_at_least() -> None:
    assert survivors(16, 0, 0.5) == 8 and survivors(5, 0, 0.5) == 3
    assert survivors(8, 0, 0.1) == 2 and survivors(8, 1, 0.1) == 1 and survivors(8, 5, 0.01) == 0
    assert survivors(1, 0, 0.5) == 1 and survivors(0, 3, 0.5) == 0


@given(
    st.lists(st.floats(0.0, 1.0, width=16), min_size=1, max_size=24),
    st.floats(0.05, 1.0),
    st.floats(0.05, 0.95),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_the_number_of_survivors_is_fixed(
    p: list[float], keep: float, share: float, u: float
) -> None:
    count = survivors(len(p), 0, keep)
    s = fitted(chances(p, keep, share), count)
    assert sum(s) == pytest.approx(count) and all(0.0 <= x <= 1.0 + 1e-12 for x in s)
    kept = drawn(s, p, u)
    assert len(kept) == len(set(kept)) == count and all(s[i] > 0 for i in kept)


def test_fewer_groups_teach_nothing_than_with_random_pruning() -> None:
    """8 of 16 are kept; the head is right with .8; prompts of all difficulties.

    A group without a spread teaches nothing.
    """
    rng = np.random.default_rng(0)
    without, groups = {"head": 0, "random": 0}, 0
    while groups < 3000:
        right = rng.random(16) < rng.beta(1.0, 1.0)
        if len(set(right)) == 1:
            continue  # no pruning can help it
        groups += 1
        p = np.where(rng.random(16) < 0.8, right, ~right) * 0.6 + 0.2
        u = rng.random()
        by = {"head": drawn(fitted(chances(p.tolist(), 0.5, 0.5), 8), p.tolist(), u)}
        by["random"] = drawn([0.5] * 16, rng.random(16).tolist(), u)
        for name, kept in by.items():
            without[name] += len(set(right[kept])) == 1
    share = {name: count / groups for name, count in without.items()}
    assert share["random"] > 0.1 and share["head"] < 0.75 * share["random"], share


# -- the policy
# ------------------------------------------------------------------------------------------

# Two kinds of answers, decided by their first character; three a's for each b; 20 characters each.
KINDS: dict[str, Any] = {"chain": {"": {"a": 0.75, "b": 0.25}, "a": {"a": 1.0}, "b": {"b": 1.0}}}
TOLD = KINDS | {"scores": {"a": 0.9, "b": 0.1, "": 0.5}}
ENDS: dict[str, Any] = {
    "chain": {"": {"a": 0.5, "b": 0.4, "": 0.1}},
    "scores": {"a": 0.8, "b": 0.3, "": 0.5},
}


def kinds(grower: Grower) -> list[str]:
    """Return the first character of each leaf."""
    return [grower.completion(leaf)[0] for leaf in grower.leaves]


def test_half_of_the_rollouts_go_on_and_they_are_balanced() -> None:
    reported, cold, expected = [], [], []
    for seed in range(60):
        for result, script in ((reported, TOLD), (cold, KINDS)):
            grower, _ = grow(spec(ARROL, {"width": 16, "detect": 5}, 20, seed), engine(script))
            assert len(grower.leaves) == 8 and grower.tree.root is not None
            assert len(grower.tree.children[grower.tree.root.id]) == 16
            result.append(np.mean([kind == "a" for kind in kinds(grower)]))
        p = [0.9 if s.text[0] == "a" else 0.1 for s in grower.tree.children[grower.tree.root.id]]
        s = fitted(chances(p, 0.5, 0.5), 8)
        expected.append(sum(x for x, y in zip(s, p, strict=True) if y > 0.5) / 8)
    assert np.mean(cold) == pytest.approx(0.75, abs=0.03), "a cold head prunes at random"
    assert np.mean(expected) < 0.67 and np.mean(reported) == pytest.approx(
        np.mean(expected), abs=0.01
    )
    spread = [np.mean([0.0 < share < 1.0 for share in result]) for result in (reported, cold)]
    assert spread[0] > spread[1], "more groups have a spread"


def test_exactly_what_comes_after_detection_is_saved() -> None:
    """All paths have 20 tokens: (1 − K)·Σ max(L_i − L_detect, 0) = 8·15."""
    with_engine, whole = engine(TOLD), engine(TOLD)
    grow(spec(ARROL, {"width": 16, "detect": 5}, 20), with_engine)
    grow(spec(ARROL, {"width": 16, "detect": 5, "keep": 1.0}, 20), whole)
    assert whole.stats().sampled_tokens - with_engine.stats().sampled_tokens == 8 * 15


def test_savings_of_paths_of_any_length_are_those_of_the_formula() -> None:
    """The mean is over random prunings; a rollout that has ended is never pruned."""
    script = {"chain": ENDS["chain"]}
    saved, expected = 0, 0.0
    for seed in range(150):
        given_spec = spec(ARROL, {"width": 16, "detect": 6}, 40, seed)
        with_engine, whole = engine(script), engine(script)
        pruned, _ = grow(given_spec, with_engine)
        full, _ = grow(spec(ARROL, {"width": 16, "detect": 6, "keep": 1.0}, 40, seed), whole)
        root = full.tree.root
        assert root is not None and len(full.leaves) == 16
        lengths = [
            len(full.tree.prefix_tokens(leaf.segment, leaf.end)) - len(root) for leaf in full.leaves
        ]
        judged = [n for n in lengths if n > 6]
        kept = survivors(len(judged), 16 - len(judged), 0.5)
        expected += (1 - kept / len(judged)) * sum(n - 6 for n in judged)
        saved += whole.stats().sampled_tokens - with_engine.stats().sampled_tokens
        early = {leaf for leaf, n in zip(full.leaves, lengths, strict=True) if n <= 6}
        assert early <= set(pruned.leaves) and len(pruned.leaves) == 16 - len(judged) + kept
    assert saved == pytest.approx(expected, rel=0.05)


def test_survivors_are_the_rollouts_that_would_have_been_without_pruning() -> None:
    pruned, _ = grow(spec(ARROL, {"width": 16, "detect": 5}, 20), engine(TOLD))
    full, _ = grow(spec(ARROL, {"width": 16, "detect": 5, "keep": 1.0}, 20), engine(TOLD))
    assert set(pruned.leaves) < set(full.leaves) and set(pruned.tree.segments) < set(
        full.tree.segments
    )


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12), st.sampled_from([0.2, 0.5, 1.0])
)
def test_neither_order_nor_a_death_changes_the_tree(
    seed: int, width: int, detect: int, keep: float
) -> None:
    given_spec = spec(ARROL, {"width": width, "detect": detect, "keep": keep}, 12, seed)
    straight, _ = grow(given_spec, engine(ENDS))
    rng = random.Random(seed)
    assert shape(grow_anyhow(given_spec, engine(ENDS), rng)) == shape(straight)
    repeated, _ = grow(given_spec, engine(ENDS), left_over(straight.tree, rng))
    assert shape(repeated) == shape(straight)
    grow_anyhow(
        given_spec, engine(ENDS), rng, cuts=0.3
    )  # a new policy now and then: it ends, and every leaf is one


def test_a_rollout_that_a_new_policy_cut_is_judged_at_its_whole_length() -> None:
    hand = Hand(max_path_tokens=10)
    policy = Arrol(width=2, detect=4, keep=0.5)
    first = hand.put(hand.start(0), [-1.0, -1.0], Finish.ABORTED)
    plan = policy.plan(hand.view(), GrowthBudget(), Draws(1))
    rest = next(e for e in plan.expansions if e.branch == Branch(first.id, 2, 0))
    assert rest.signals.head, "the head may have been cold before"
    second = hand.put(
        rest.branch, [-1.0, -1.0], Finish.BOUNDARY, signals=Signals(head_T=np.array([0.1, 0.9]))
    )
    other = hand.put(
        hand.start(1), [-1.0] * 4, Finish.BOUNDARY, signals=Signals(head_T=np.array([0.1] * 4))
    )
    plan = policy.plan(hand.view(), GrowthBudget(), Draws(1))
    assert asked(plan, hand.tree) == {Branch(second.id, 2, 0): 6, Branch(other.id, 4, 0): 6}, (
        "two survive at least"
    )
    observed = policy.observations(hand.tree, [Leaf(second.id, 2), Leaf(other.id, 4)])
    assert [(o.at, o.kept) for o in observed] == [(3, 1.0), (3, 1.0)]


def test_the_learner_can_tell_each_survivors_chance() -> None:
    """3 of 4 went on, of which the rule keeps 2; one that has ended teaches nothing about that
    place."""
    hand = Hand(max_path_tokens=10)
    policy = Arrol(width=4, detect=2, keep=2 / 3)
    scores = (0.8, 0.5, 0.2)
    judged = [
        hand.put(
            hand.start(i),
            [-1.0] * 2,
            Finish.BOUNDARY,
            signals=Signals(head_T=np.array([0.0, score])),
        )
        for i, score in enumerate(scores)
    ]
    early = hand.put(hand.start(3), [-1.0], Finish.STOP)
    plan = policy.plan(hand.view(), GrowthBudget(), Draws(3))
    assert [mark.leaf.segment for mark in plan.leaves] == [early.id]
    alive = [branch for branch in asked(plan, hand.tree) if branch.parent != hand.root.id]
    assert len(alive) == 2
    ends = [hand.put(branch, [-1.0] * 8, Finish.LENGTH) for branch in alive]
    assert policy.plan(hand.view(), GrowthBudget(), Draws(3)).done
    observed = policy.observations(hand.tree, [Leaf(s.id, 8) for s in ends] + [Leaf(early.id, 1)])
    halves = [float(np.float32(np.float16(score))) for score in scores]
    expected = dict(
        zip((s.id for s in judged), fitted(chances(halves, 2 / 3, 0.5), 2), strict=True)
    )
    assert [(o.at, o.kept) for o in observed] == [
        (1, pytest.approx(expected[end.parent])) for end in ends
    ]


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"keep": 0.0}, "keep"),
        ({"keep": 1.1}, "keep"),
        ({"share": 0.0}, "share"),
        ({"share": 1.0}, "share"),
        ({"detect": 0}, "detect"),
    ],
)
def test_impossible_settings_are_refused(given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        spec(ARROL, given_settings)
