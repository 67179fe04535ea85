"""echo's trees: leaves, branches at uncertain tokens, cuts, and interruptions."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import GrowthBudget, GrowthView
from banyan.segment import Finish, Kind, Sampling
from banyan.tree import Tree
from banyan.view import TreeView
from methods.generate.echo.policy import Echo
from tests.methods.generate.forests import Hand, grow_anyhow
from tests.rollout.growing import TREEPO, engine, grow, shape, spec, survivors

ECHO = "methods.generate.echo.policy:Echo"
# six sure characters, a choice of eight, then six that depend on it
FORK = {"": {"x": 1.0}, "xxxxxx": dict.fromkeys("abcdefgh", 0.125)} | {
    c: {c: 1.0} for c in "abcdefgh"
}
SPLIT = {
    "": {"a": 0.6, "b": 0.38, "": 0.02},
    "a": {"a": 0.98, "": 0.02},
    "b": dict.fromkeys("abcdefghij", 0.1),
}
VAGUE = {"": dict.fromkeys("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN", 1 / 40)}


def answers(grower):
    return {grower.completion(leaf) for leaf in grower.leaves}


def halved(tree):
    """Return whether forced tokens lack their continuation, which is drawn again at its own
    place."""
    return any(
        s.kind is Kind.FORCED and s.finish is not Finish.STOP and s.id not in tree.children
        for s in tree
    )


def echo(view, n=None, step=0, **given_settings):
    return Echo(**given_settings).plan(view, GrowthBudget(n, step), Draws(view.seed))


def test_a_chain_branches_at_the_fork_into_its_likeliest_tokens():
    given_spec = spec(ECHO, {"width": 6, "chains": 1, "segment": 4, "max_branches": 4}, 12)
    grower, _ = grow(given_spec, engine({"chain": FORK}))
    forced = [s for s in grower.tree if s.kind is Kind.FORCED]
    assert len(grower.leaves) == 6 and 3 <= len(forced) <= 4
    base = grower.tree.at(grower.tree.root.id, len(grower.tree.root), 0)
    own = grower.completion(
        next(leaf for leaf in grower.leaves if base in grower.tree.lineage(leaf.segment))
    )
    for segment in forced:
        assert (
            len(grower.tree.prefix_tokens(segment.parent, segment.fork))
            == len(grower.tree.root) + 6
        )
        assert len(segment) == 1 and segment.text != own[6] and segment.ordinal in (1, 2, 3, 4)
    assert len({s.text for s in forced}) == len(forced)
    fresh = [s for s in grower.tree.children[grower.tree.root.id] if s.ordinal]
    assert len(fresh) == 6 - 1 - len(forced)


def test_on_one_high_entropy_fork_echo_finds_more_answers_than_treepo():
    result = {}
    for name, settings_ in ((ECHO, {"chains": 1, "max_branches": 8}), (TREEPO, {"max_depth": 3})):
        given_settings = settings_ | {"width": 8, "segment": 4}
        grown = [
            grow(spec(name, given_settings, 12, seed), engine({"chain": FORK}))[0]
            for seed in range(20)
        ]
        assert all(len(grower.leaves) == 8 for grower in grown)
        result[name] = np.mean([len(answers(grower)) for grower in grown])
    assert result[ECHO] == 8.0 and result[TREEPO] < 6.0


def test_unlikely_tokens_are_not_forced():
    chain = {"": {"x": 1.0}, "xxxxxx": {"a": 0.5, "b": 0.495, "c": 0.005}} | {
        c: {c: 1.0} for c in "abc"
    }
    given_settings = {"width": 4, "chains": 1}
    grower, _ = grow(spec(ECHO, given_settings, 12), engine({"chain": chain}))
    assert {s.text for s in grower.tree if s.kind is Kind.FORCED} < {"a", "b"}
    grower, _ = grow(spec(ECHO, given_settings | {"floor": 0.0}, 12), engine({"chain": chain}))
    assert (
        len({s.text for s in grower.tree if s.kind is Kind.FORCED}) == 2
    )  # c too; what is impossible never


def test_a_forced_end_is_a_leaf_of_its_own():
    chain = {"": {"x": 1.0}, "xxxxxx": {"a": 0.6, "": 0.4}, "a": {"a": 1.0}}
    for seed in range(9):
        grower, _ = grow(spec(ECHO, {"width": 2, "chains": 1}, 12, seed), engine({"chain": chain}))
        assert answers(grower) == {"xxxxxx", "xxxxxxaaaaaa"}
        assert sorted(grower.leaves.values()) == ["length", "stop"]


def test_published_thresholds_never_branch():
    published = {"width": 6, "chains": 2, "thresholds": "published", "top": 10}
    for chain in (FORK, SPLIT, VAGUE):
        grower, _ = grow(spec(ECHO, published, 24), engine({"chain": chain}))
        assert not any(s.kind is Kind.FORCED for s in grower.tree) and len(grower.leaves) == 6
        assert "low_confidence" not in grower.leaves.values()


def test_a_path_without_confidence_is_cut_at_the_end_of_its_segment_and_keeps_its_prefix():
    vague = dict.fromkeys("abcdefghijklmnopqrstuvwyzABCDEFGHIJKLMNO", 1 / 40)
    chain = {"": {"x": 1.0}, "xxxxxx": vague} | dict.fromkeys(vague, vague)
    given_spec = spec(ECHO, {"width": 3, "chains": 3, "segment": 8}, 64)
    with_engine = engine({"chain": chain})
    grower, _ = grow(given_spec, with_engine)
    assert (
        set(grower.leaves.values()) <= {"low_confidence", "tail_decline", "entropy_spike"}
        and len(grower.leaves) == 3
    )
    for leaf in grower.leaves:
        kept = len(grower.completion(leaf))
        assert 8 <= kept < 16 and 0 < leaf.end <= 8
    assert with_engine.stats().sampled_tokens <= 3 * 16, "what follows a cut is not sampled"
    whole, _ = grow(
        spec(ECHO, {"width": 3, "chains": 3, "segment": 8, "cut": False}, 64),
        engine({"chain": chain}),
    )
    assert set(whole.leaves.values()) <= {"length"}


def test_no_chain_branches_behind_its_cut():
    vague = dict.fromkeys("abcdefghijklmnopqrstuvwyzABCDEFGHIJKLMNO", 1 / 40)
    chain = {"": {"x": 1.0}, "xxxxxxxx": vague} | dict.fromkeys(vague, vague)
    given_settings = {"width": 4, "chains": 2, "segment": 24, "rise": 0.0, "confidence": 1.0}
    for least, branches in ((8, True), (13, False)):
        grower, _ = grow(
            spec(ECHO, given_settings | {"min_depth": least}, 24), engine({"chain": chain})
        )
        assert all(len(grower.completion(leaf)) <= 13 for leaf in grower.leaves)
        assert any(s.kind is Kind.FORCED for s in grower.tree) is branches


def test_a_forced_token_leaves_room_for_one_more():
    for most, branches in ((7, False), (8, True)):
        grower, _ = grow(spec(ECHO, {"width": 4, "chains": 1}, most), engine({"chain": FORK}))
        assert (
            any(s.kind is Kind.FORCED for s in grower.tree) is branches and len(grower.leaves) == 4
        )


def test_room_bounds_the_leaves():
    hand = Hand()
    plan = echo(hand.view(), n=2, width=8, chains=4)
    assert len(plan.expansions) == 2
    assert {e.signals.top for e in plan.expansions} == {20}


def test_an_engine_without_signals_is_refused_by_name():
    hand = Hand()
    hand.put(hand.start(), [-1.0])
    with pytest.raises(InvalidInput, match="without its likeliest tokens"):
        echo(hand.view())


@pytest.mark.parametrize(
    "bad,message",
    [
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"chains": True}, "chains must be a whole number of at least 1, got True"),
        ({"alpha": "x"}, "alpha must be a finite number, got 'x'"),
        ({"cut_tail": []}, r"cut_tail must be a finite number, got \[\]"),
        ({"top": 21}, "nor top 20"),
        ({"max_branches": 9, "top": 8}, "max_branches may not exceed top"),
        ({"thresholds": "mine"}, "one of quantile, published"),
        ({"measure": "sum"}, "one of mean_probability, neg_mean_log"),
        ({"entropy_high": 3.5}, "quantiles must lie in 0..1"),
        ({"floor": 1.0}, "below 1"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(bad, message):
    with pytest.raises(ValueError, match=message):
        Echo(**bad)


SETTINGS = st.fixed_dictionaries(
    {
        "width": st.integers(1, 9),
        "chains": st.integers(1, 4),
        "segment": st.integers(1, 9),
        "max_branches": st.integers(1, 5),
        "min_depth": st.integers(1, 4),
        "cut": st.booleans(),
        "rise": st.sampled_from([0.0, 0.2]),
        "cut_tail": st.sampled_from([None, 0.2]),
        "tail_window": st.sampled_from([4, 8]),
    }
)
CHAINS = st.sampled_from([FORK, SPLIT, VAGUE])


@settings(max_examples=25, deadline=None)
@given(
    SETTINGS,
    CHAINS,
    st.integers(1, 16),
    st.integers(0, 10**6),
    st.integers(0, 10**6).map(random.Random),
)
def test_leaves_are_exactly_n_whatever_ends_and_cuts_the_paths(policy, chain, most, seed, rng):
    given_spec = spec(ECHO, policy, most, seed)
    grower = grow_anyhow(given_spec, engine({"chain": chain}), rng, cuts=0.2)
    assert len(grower.leaves) == policy["width"]
    TreeView(grower.tree, list(grower.leaves), {})  # no two leaves end at the same token
    for leaf in grower.leaves:
        assert (
            1
            <= len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(grower.tree.root)
            <= most
        )


@settings(max_examples=25, deadline=None)
@given(SETTINGS, CHAINS, st.integers(0, 10**6), st.integers(0, 10**6).map(random.Random))
def test_neither_order_nor_a_crash_changes_the_tree(policy, chain, seed, rng):
    given_spec = spec(ECHO, policy, 14, seed)
    whole, _ = grow(given_spec, engine({"chain": chain}))
    assert shape(grow_anyhow(given_spec, engine({"chain": chain}), rng)) == shape(whole)
    part = survivors(whole.tree, rng)
    if part.root is None:
        return
    view = GrowthView(part, seed, 14, sampling=given_spec.sampling)
    plan = given_spec.tree_policy.plan(view, GrowthBudget(), Draws(seed))
    assert plan == given_spec.tree_policy.plan(view, GrowthBudget(), Draws(seed))
    for expansion in plan.expansions:  # it asks for what the whole tree has and this one lacks
        b = expansion.branch
        assert (
            part.at(b.parent, b.fork, b.ordinal) is None
            and whole.tree.at(b.parent, b.fork, b.ordinal) is not None
        )
    assert {mark.leaf for mark in plan.leaves} <= set(whole.leaves)
    same = not halved(part)
    repeated, _ = grow(given_spec, engine({"chain": chain}, max_branches=2), part)
    assert len(repeated.leaves) == len(whole.leaves)
    assert shape(repeated) == shape(whole) or not same


@settings(max_examples=10, deadline=None)
@given(SETTINGS, CHAINS, st.integers(0, 10**6), st.integers(0, 10**6).map(random.Random))
def test_no_more_than_n_paths_run_at_once(policy, chain, seed, rng):
    given_spec = spec(ECHO, policy, 14, seed)
    whole, _ = grow(given_spec, engine({"chain": chain}))
    order = list(whole.tree)
    for count in itertools.islice(range(1, len(order) + 1), 40):
        view = GrowthView(
            Tree(given_spec.tree_id, order[:count]), seed, 14, sampling=given_spec.sampling
        )
        plan = given_spec.tree_policy.plan(view, GrowthBudget(), Draws(seed))
        assert len(plan.expansions) + len(plan.leaves) <= policy["width"]


def test_a_tempered_recipe_keeps_its_sampling():
    hand = Hand(sampling=Sampling(temperature=0.8, stop=("x",)))
    (first, *_) = echo(hand.view(), width=2, segment=4).expansions
    assert replace(first.sampling, max_new_tokens=hand.sampling.max_new_tokens) == hand.sampling
    assert first.sampling.max_new_tokens == 4
