"""Properties of latr: exact leaves, and one tree whatever the order and the interruptions."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.draws import Draws
from banyan.plugins import GrowthBudget, GrowthView
from banyan.segment import Finish, Kind
from banyan.tree import Tree
from banyan.view import TreeView
from tests.methods.generate.forests import grow_anyhow
from tests.methods.generate.latr_chains import BOTH, DIGITS, LATR, LETTERS
from tests.rollout.growing import ENDING, ENDLESS, engine, grow, shape, spec, survivors

SETTINGS = st.fixed_dictionaries(
    {
        "width": st.integers(1, 7),
        "chunk": st.integers(1, 7),
        "candidates": st.integers(2, 3),
        "ages": st.sampled_from([[], [1], [2, 4], [3, 5]]),
        "tau_abs": st.sampled_from([0.05, 0.25]),
        "tau_rel": st.sampled_from([0.15, 0.6]),
        "preset": st.sampled_from(["math", "countdown"]),
        "force_return": st.integers(1, 20),
        "eta": st.sampled_from([{0: 1.0}, {0: 0.6}, {0: 0.0}]),
    }
)


CHAINS = st.sampled_from([DIGITS, LETTERS, BOTH, ENDING["chain"], ENDLESS["chain"]])


RANDOM = st.integers(0, 10**6).map(random.Random)


@settings(max_examples=40, deadline=None)
@given(SETTINGS, CHAINS, st.integers(1, 16), st.integers(0, 10**6), RANDOM)
def test_leaves_are_exactly_n_whatever_ends_and_cuts_the_paths(policy, chain, most, seed, rng):
    grower = grow_anyhow(spec(LATR, policy, most, seed), engine({"chain": chain}), rng, cuts=0.2)
    assert len(grower.leaves) == policy["width"]
    TreeView(grower.tree, list(grower.leaves), {})  # no two leaves end at the same token
    for leaf in grower.leaves:
        assert (
            1
            <= len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(grower.tree.root)
            <= most
        )


@settings(max_examples=40, deadline=None)
@given(SETTINGS, CHAINS, st.integers(0, 10**6), RANDOM)
def test_neither_order_nor_a_crash_changes_the_tree(policy, chain, seed, rng):
    given_spec = spec(LATR, policy, 14, seed)
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
    same = not any(
        s.kind is Kind.FORCED and s.finish is not Finish.STOP and s.id not in part.children
        for s in part
    )
    repeated, _ = grow(given_spec, engine({"chain": chain}, max_branches=2), part)
    assert len(repeated.leaves) == policy["width"]
    assert (
        shape(repeated) == shape(whole) or not same
    )  # what followed a forced token alone is drawn again elsewhere


@settings(max_examples=15, deadline=None)
@given(SETTINGS, CHAINS, st.integers(0, 10**6))
def test_no_more_than_n_branches_live(policy, chain, seed):
    given_spec = spec(LATR, policy, 14, seed)
    whole, _ = grow(given_spec, engine({"chain": chain}))
    order = list(whole.tree)
    for count in range(1, min(len(order), 40) + 1):
        view = GrowthView(
            Tree(given_spec.tree_id, order[:count]), seed, 14, sampling=given_spec.sampling
        )
        plan = given_spec.tree_policy.plan(view, GrowthBudget(), Draws(seed))
        assert len(plan.expansions) + len(plan.leaves) <= policy["width"]
