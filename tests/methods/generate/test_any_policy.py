"""Properties of every policy that branches from finished paths.

They are exact budgets, resumption, order, cuts, idempotence.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import GrowthBudget, GrowthView, traits
from banyan.segment import Finish
from banyan.tree import Tree
from services.rollout.growth.grower import Grower
from tests.methods.generate.forests import EAGER, Signalling, any_policy, asked, grow_anyhow
from tests.rollout import growing
from tests.rollout.growing import ENDING, ENDLESS, grow, shape, spec, survivors

SEEDS = st.integers(0, 10**6)
RANDOMS = SEEDS.map(random.Random)


def engine(chain, **more):
    return Signalling(growing.engine(chain, **more))


def width(name, of):
    return registry.build("generate", name, of).width


def longest(policy, max_tokens):
    """Draw the tokens that a path may have."""
    name, of = policy
    return min(max_tokens, of["segment"] * of["max_depth"]) if name == EAGER else max_tokens


@settings(max_examples=150, deadline=None)
@given(any_policy(), st.integers(1, 20), SEEDS, st.sampled_from([ENDING, ENDLESS]))
def test_a_tree_has_exactly_its_leaves_and_nothing_sampled_in_vain(policy, max_tokens, seed, chain):
    grower, _ = grow(spec(*policy, max_tokens, seed), engine(chain))
    assert len(grower.leaves) == width(*policy)
    for leaf, reason in grower.leaves.items():
        tokens = len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(grower.tree.root)
        assert 1 <= tokens <= longest(policy, max_tokens)
        whole = (
            policy[1].get("segment", 1) if reason == "depth" else 1
        )  # a cut inside a segment shifts those after it
        assert reason == "stop" or tokens > longest(policy, max_tokens) - whole
    ended = {leaf.segment for leaf in grower.leaves}
    assert all(s.id in ended or grower.tree.children.get(s.id) for s in grower.tree)


@settings(max_examples=60, deadline=None)
@given(any_policy(), SEEDS, RANDOMS, st.sampled_from([1, 3, 64]))
def test_whatever_ends_first_the_tree_is_the_same(policy, seed, rng, max_branches):
    given_spec = spec(*policy, 12, seed)
    whole, _ = grow(given_spec, engine(ENDING))
    assert shape(grow_anyhow(given_spec, engine(ENDING, max_branches=max_branches), rng)) == shape(
        whole
    )


@settings(max_examples=60, deadline=None)
@given(any_policy(), SEEDS, RANDOMS, st.sampled_from([1, 3, 64]))
def test_an_interrupted_tree_grows_into_the_same_tree(policy, seed, rng, max_branches):
    given_spec = spec(*policy, 12, seed)
    whole, _ = grow(given_spec, engine(ENDING))
    tree = Tree(given_spec.tree_id)
    for _ in range(30):
        grower, done = grow(
            given_spec,
            engine(ENDING, max_branches=max_branches),
            tree,
            most_steps=rng.randint(1, 6),
        )
        if done:
            break
        tree = survivors(grower.tree, rng)
    else:
        grower, _ = grow(given_spec, engine(ENDING), tree)
    assert shape(grower) == shape(whole)


@settings(max_examples=60, deadline=None)
@given(any_policy(), SEEDS, RANDOMS)
def test_a_plan_asks_for_what_is_missing_and_twice_for_the_same(policy, seed, rng):
    given_spec = spec(*policy, 12, seed)
    whole, _ = grow(given_spec, engine(ENDING))
    part = survivors(whole.tree, rng)
    if part.root is None:
        return
    view = GrowthView(part, seed, 12, sampling=given_spec.sampling)
    first, second = [
        given_spec.tree_policy.plan(view, GrowthBudget(), Draws(seed)) for _ in range(2)
    ]
    assert first == second and len({e.branch for e in first.expansions}) == len(first.expansions)
    missing = asked(first, part)
    assert all(whole.tree.at(b.parent, b.fork, b.ordinal) for b in missing), (
        "only what the whole tree has"
    )
    assert bool(missing) == (len(part) < len(whole.tree)) == (not first.done)
    flying = GrowthView(part, seed, 12, frozenset(missing), sampling=given_spec.sampling)
    assert given_spec.tree_policy.plan(flying, GrowthBudget(), Draws(seed)) == first, (
        "what is in flight changes nothing"
    )


@settings(max_examples=60, deadline=None)
@given(any_policy(), SEEDS, RANDOMS)
def test_cuts_by_new_policies_change_no_leaf_count(policy, seed, rng):
    grower = grow_anyhow(spec(*policy, 12, seed), engine(ENDLESS), rng, cuts=0.3)
    assert len(grower.leaves) == width(*policy)
    for segment in grower.tree:
        if segment.finish is Finish.ABORTED:
            rest = grower.tree.at(segment.id, len(segment), 0)
            assert rest.sampling.max_new_tokens == segment.sampling.max_new_tokens - len(segment)
    for leaf in grower.leaves:
        tokens = len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(grower.tree.root)
        assert tokens == longest(policy, 12)


@settings(max_examples=60, deadline=None)
@given(any_policy(), SEEDS, st.integers(0, 9))
def test_a_narrow_room_bounds_the_leaves(policy, seed, most):
    given_spec = spec(*policy, 12, seed)

    class Narrow:
        def plan(self, view, room, rng):
            return given_spec.tree_policy.plan(view, GrowthBudget(max_leaves=most), rng)

    grower, _ = grow(replace(given_spec, tree_policy=Narrow()), engine(ENDING))
    assert len(grower.leaves) == min(most, width(*policy))


def test_the_drivers_can_tell_trees_apart():
    item, _ = grow(spec("iid", {"width": 3}, 12, 1), engine(ENDING))
    other = grow_anyhow(spec("iid", {"width": 3}, 12, 2), engine(ENDING), random.Random(0))
    assert shape(item) != shape(other)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("echo", {"segment": 16, "chains": 1, "width": 6, "max_branches": 4}),
        ("eptree", {}),
        ("latr", {"chunk": 4}),
        ("rose", {}),
        ("tree-grpo", {"node": 3}),
        ("treepo", {"segment": 16, "max_depth": 4, "fallback": "argmin_logprob"}),
        ("treepo-eager", {"segment": 16, "max_depth": 4, "fallback": "argmin_logprob"}),
    ],
)
def test_a_policy_whose_paths_begin_inside_ended_segments_says_so(name, of):
    """Engines keep the KV of such segments."""
    sure = {"": {"x": 1.0}, "xxxxxx": dict.fromkeys("abcdefgh", 0.125)}  # what echo branches at
    for seed in range(20):
        fresh = growing.engine({"chain": sure}) if name == "echo" else engine(ENDING)
        tree = grow(spec(name, of, 48, seed), fresh)[0].tree
        inside = [s for s in tree if s.parent and s.fork < len(tree.segments[s.parent])]
        if any(s.parent != tree.root.id for s in inside):
            break
    else:
        pytest.fail("no tree of it has such a path")
    assert traits.of_policy(registry.build("generate", name, of)).forks_inside


@settings(max_examples=60, deadline=None)
@given(any_policy(), SEEDS)
def test_requests_say_what_the_policy_says(policy, seed):
    grower = Grower(spec(*policy, 12, seed), Tree(b"t" * 32), engine(ENDING).tokenizer, "test")
    said = traits.of_policy(grower.spec.tree_policy).forks_inside
    assert {request.forks_inside for request in grower.start().requests} == {said}


@pytest.mark.parametrize("name", ["iid", "dars", "echo", "latr", "treepo", "treepo-eager", "rose"])
def test_true_is_no_number_of_leaves(name):
    with pytest.raises(InvalidInput, match=r"width must be a whole number .*, got True"):
        registry.build("generate", name, {"width": True})
