"""Trees as they grow: budgets, saving, resumption from any part of a tree, cuts by a new policy."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import order
from banyan.draws import Draws
from banyan.plugins import Branch, Expansion, GrowthBudget, GrowthView, Plan
from banyan.policy import PolicyVersion
from banyan.segment import Finish, Kind
from banyan.tree import Leaf, Tree
from methods.generate.treepo import budget, endings
from services.rollout.growth.grower import Grower
from tests.rollout.growing import ENDING, ENDLESS, IID, TREEPO, engine, grow, shape, spec, survivors


def policy_tokens(grower):
    return sum(len(s) for s in grower.tree if s.kind is Kind.POLICY)


def path_tokens(grower, leaf):
    return len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(grower.tree.root)


def test_iid_grows_its_width_from_the_prompt():
    grower, _ = grow(spec(IID, {"width": 5}, 9), engine(ENDING))
    assert len(grower.leaves) == 5 and len(grower.tree) == 6
    root = grower.tree.root
    assert root.kind is Kind.PROMPT and root.text == "go" and not len(root.logprobs_T)
    for leaf, reason in grower.leaves.items():
        segment = grower.tree.segments[leaf.segment]
        assert segment.finish is (Finish.STOP if reason == "stop" else Finish.LENGTH)
        assert leaf.end == len(segment) and (len(segment) == 9) >= (reason == "length")
        assert segment.text == grower.completion(leaf)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_a_full_binary_tree_samples_what_its_closed_form_says(depth):
    s, width = 3, 2**depth
    treepo = {"segment": s, "max_depth": depth, "width": width, "divisor": 2}
    grower, _ = grow(spec(TREEPO, treepo, s * depth), engine(ENDLESS))
    sampled, iid = policy_tokens(grower), sum(path_tokens(grower, leaf) for leaf in grower.leaves)
    assert (sampled, iid) == (s * (2 ** (depth + 1) - 2), s * depth * width)
    if depth == 4:
        assert 1 - sampled / iid == pytest.approx(0.53125)


def test_the_prefix_cache_hits_what_the_tree_shares():
    grower, _ = grow(
        spec(TREEPO, {"segment": 4, "max_depth": 4, "width": 16}, 16),
        scripted := engine(ENDLESS),
    )
    stats, prompt = scripted.stats(), len(grower.tree.root)
    assert stats.prefilled_tokens == prompt  # everything else was sampled here and kept
    branches = sum(1 for s in grower.tree if s.kind is Kind.POLICY)
    asked = sum(len(grower.tree.prefix_tokens(s.parent, s.fork)) for s in grower.tree if s.parent)
    assert stats.cached_tokens == asked - prompt and branches == 30


TREES = st.fixed_dictionaries(
    {
        "segment": st.integers(1, 5),
        "max_depth": st.integers(1, 6),
        "width": st.integers(1, 11),
        "divisor": st.integers(1, 4),
        "budget": st.sampled_from(budget.POLICIES),
        "fallback": st.sampled_from(endings.CUTS),
    }
)


@settings(max_examples=120, deadline=None)
@given(TREES, st.integers(1, 20), st.integers(0, 10**6), st.sampled_from([ENDING, ENDLESS]))
def test_a_treepo_tree_has_exactly_w_leaves_within_its_limits(treepo, max_tokens, seed, chain):
    grower, _ = grow(spec(TREEPO, treepo, max_tokens, seed), engine(chain))
    assert len(grower.leaves) == treepo["width"]
    for leaf in grower.leaves:
        assert (
            1
            <= path_tokens(grower, leaf)
            <= min(max_tokens, treepo["segment"] * treepo["max_depth"])
        )
    ended = {leaf.segment for leaf in grower.leaves}
    for segment in grower.tree:
        assert segment.id in ended or grower.tree.children.get(segment.id), (
            "no segment leads nowhere"
        )


@settings(max_examples=60, deadline=None)
@given(TREES, st.integers(0, 10**6), st.randoms(use_true_random=False), st.sampled_from([1, 3, 64]))
def test_an_interrupted_tree_grows_into_the_same_tree(treepo, seed, rng, max_branches):
    assignment = spec(TREEPO, treepo, 12, seed)
    whole, _ = grow(assignment, engine(ENDING))
    tree = Tree(assignment.tree_id)
    for _ in range(30):
        grower, done = grow(
            assignment,
            engine(ENDING, max_branches=max_branches),
            tree,
            most_steps=rng.randint(1, 6),
        )
        if done:
            break
        tree = survivors(grower.tree, rng)
    else:
        grower, _ = grow(assignment, engine(ENDING), tree)
    assert shape(grower) == shape(whole)


@settings(max_examples=60, deadline=None)
@given(TREES, st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_a_plan_asked_twice_is_the_same_plan(treepo, seed, rng):
    assignment = spec(TREEPO, treepo, 12, seed)
    whole, _ = grow(assignment, engine(ENDING))
    part = survivors(whole.tree, rng)
    if part.root is None:
        return
    view = GrowthView(part, seed, 12, sampling=assignment.sampling)
    plans = [assignment.tree_policy.plan(view, GrowthBudget(), Draws(seed)) for _ in range(2)]
    assert plans[0] == plans[1]
    assert len({e.branch for e in plans[0].expansions}) == len(plans[0].expansions)
    narrow = assignment.tree_policy.plan(view, GrowthBudget(max_leaves=2), Draws(seed))
    assert len(narrow.leaves) <= 2


@pytest.mark.parametrize(
    "policy,settings_", [(IID, {"width": 4}), (TREEPO, {"segment": 4, "width": 6, "max_depth": 3})]
)
def test_what_a_new_policy_cuts_goes_on_as_new_segments(policy, settings_):
    assignment = spec(policy, settings_, 12)
    running = engine(ENDLESS)
    grower = Grower(assignment, Tree(assignment.tree_id), running.tokenizer, "test")
    step, turns = grower.start(), 0
    while step.grown is None:
        for request in step.requests:
            running.submit(request)
        turns += 1
        cut = (
            running.load(PolicyVersion(1, turns // 2, b"q%d" % (turns // 2)), None)
            if turns % 2 == 0
            else []
        )
        step = grower.ended(cut or running.step())
    assert len(grower.leaves) == settings_.get("width")
    aborted = [s for s in grower.tree if s.finish is Finish.ABORTED]
    assert aborted and len({s.policy for s in grower.tree if s.parent}) > 2
    for segment in aborted:
        (rest,) = grower.tree.children[segment.id]
        assert (rest.fork, rest.ordinal) == (len(segment), 0)
        assert rest.sampling.max_new_tokens == segment.sampling.max_new_tokens - len(segment)
    for leaf in grower.leaves:
        assert path_tokens(grower, leaf) == 12


def test_a_fallback_may_fork_inside_a_finished_segment():
    """Paths that mostly end at once leave only fallbacks; argmin cuts at the unlikely token."""
    chain = {"chain": {"": {"a": 0.6, "b": 0.1, "": 0.3}}}
    treepo = {"segment": 6, "max_depth": 3, "width": 10, "fallback": "argmin_logprob"}
    grower, _ = grow(spec(TREEPO, treepo, 18, 11), engine(chain))
    assert len(grower.leaves) == 10
    assert any(
        s.parent and s.fork not in (0, len(grower.tree.segments[s.parent])) for s in grower.tree
    )


class Pruner:
    """A tree policy that prunes the second of two branches once the first has ended."""

    def plan(self, view, room, rng):
        branches = [Branch(view.root.id, len(view.root), i) for i in range(2)]
        ends = [view.tree.at(b.parent, b.fork, b.ordinal) for b in branches]
        expansions = tuple(Expansion(b, view.sampling) for b in branches)
        prunes = ((branches[1], 0),) if ends[0] is not None else ()
        return Plan(expansions, (), prunes, done=None not in ends)


def test_a_pruned_branch_ends_as_pruned():
    assignment = replace(spec(IID, {}, 50), tree_policy=Pruner())
    running = engine(ENDLESS)
    grower = Grower(assignment, Tree(assignment.tree_id), running.tokenizer, "test")
    requests = grower.start().requests
    running.submit(replace(requests[0], sampling=replace(requests[0].sampling, max_new_tokens=3)))
    running.submit(requests[1])
    running.step(), running.step()
    step = grower.ended(running.step())
    (branch,) = step.aborts
    step = grower.ended([running.abort(grower.key(branch))])
    assert [s.finish for s in step.segments] == [Finish.PRUNED] and len(step.segments[0]) == 3
    assert step.grown == ()


def test_leaves_that_the_store_knows_are_not_announced_again():
    assignment = spec(IID, {"width": 3}, 6)
    whole, _ = grow(assignment, engine(ENDING))
    known = list(whole.leaves)[:2]
    grower = Grower(
        assignment, whole.tree, engine().tokenizer, "test", leaves=dict.fromkeys(known, "")
    )
    step = grower.start()
    assert [m.leaf for m in step.leaves] == [leaf for leaf in whole.leaves if leaf not in known]
    assert set(step.grown) == set(whole.leaves) and not step.requests and not step.segments


def test_the_logical_order_is_that_of_the_tree():
    grower, _ = grow(spec(TREEPO, {"segment": 2, "max_depth": 3, "width": 6}, 6), engine(ENDLESS))
    places = {s.id: grower._requests.logical_place(s.id) for s in grower.tree}
    assert len(set(places.values())) == len(places)
    for segment_id, path in order.paths(grower.tree).items():
        assert places[segment_id] == tuple(number for pair in path for number in pair)
    for segment in grower.tree:
        above = places.get(segment.parent, ())
        assert places[segment.id][: len(above)] == above


def test_random_parts_do_not_matter_to_iid():
    assignment = spec(IID, {"width": 6}, 7)
    whole, _ = grow(assignment, engine())
    for seed in range(20):
        part = survivors(whole.tree, random.Random(seed))
        resumed, _ = grow(assignment, engine(), part)
        assert shape(resumed) == shape(whole)
    assert Leaf(b"", 0) not in whole.leaves
