"""rounds: as many leaves as the budget allows, and one tree however it is interrupted."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import GrowthBudget, GrowthView
from banyan.tree import Tree
from services.rollout.growth import plan_log, view_digest
from services.rollout.growth.grants import BudgetGrant
from services.rollout.growth.grower import Grower
from tests.methods.generate.forests import grow_anyhow
from tests.rollout.growing import ENDING, ENDLESS, engine, shape, spec, survivors

ROUNDS = "methods.generate.rounds:Rounds"
SEEDS = st.integers(0, 10**6)
LEAVES = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(sorted)
SMALL = {"start": 2, "most": 9}


def room(leaves, round, final=False):
    return BudgetGrant(leaves=leaves, round=round, final=final)


def rooms(leaves):
    """Return control's budgets, one a round, the last of them final."""
    return [room(n, number + 1, number + 1 == len(leaves)) for number, n in enumerate(leaves)]


def sampled(grower, step, given_engine):
    """Sample until the tree waits or is grown; return its records and the last step."""
    records = [*step.plans]
    while step.requests or grower.in_flight:
        for request in step.requests:
            given_engine.submit(request)
        step = grower.ended(given_engine.step())
        records += step.plans
    return records, step


def grown(given_spec, leaves, tree=None, given_engine=None):
    """Grow a tree to its end; return it with the records of its plans."""
    given_engine = given_engine or engine(ENDING)
    grower = Grower(given_spec, tree or Tree(given_spec.tree_id), given_engine.tokenizer, "n")
    records, step = sampled(grower, grower.start(), given_engine)
    for item in rooms(leaves):
        assert grower.lacks_budget and grower.waits and step.grown is None
        more, step = sampled(grower, grower.budget_granted(item), given_engine)
        records += more
    assert step.grown is not None and not grower.waits
    return grower, records


@settings(max_examples=60, deadline=None)
@given(LEAVES, SEEDS, st.sampled_from([ENDING, ENDLESS]))
def test_a_tree_has_the_leaves_of_its_last_room(leaves, seed, chain):
    grower, _ = grown(spec(ROUNDS, SMALL, 6, seed), leaves, given_engine=engine(chain))
    assert len(grower.leaves) == min(9, max(2, leaves[-1]))


@settings(max_examples=40, deadline=None)
@given(LEAVES, SEEDS)
def test_every_plan_is_made_again_from_its_record(leaves, seed):
    given_spec = spec(ROUNDS, SMALL, 6, seed)
    grower, records = grown(given_spec, leaves)
    views = plan_log.views(given_spec, grower.tree, records)
    given_rooms = plan_log.budgets(given_spec, records)
    for record, view, item in zip(records, views, given_rooms, strict=True):
        assert view_digest.digest(view, budget=item) == record.view_digest
        plan = given_spec.tree_policy.plan(view, item, Draws(seed))
        assert (
            plan == given_spec.tree_policy.plan(view, item, Draws(seed))
            and plan.done == record.done
        )
        missing = {e.branch for e in plan.expansions} - view.in_flight
        missing = {b for b in missing if view.tree.at(b.parent, b.fork, b.ordinal) is None}
        assert missing == {plan_log.branch_from_wire(e.branch) for e in record.expansions}
    digests = {
        view_digest.digest(GrowthView(grower.tree, seed, 6), budget=GrowthBudget(n, 0, f))
        for n in (2, 3)
        for f in (True, False)
    }
    assert len(digests) == 4, "a view with another room is another"


@settings(max_examples=60, deadline=None)
@given(LEAVES, SEEDS, SEEDS.map(random.Random))
def test_a_tree_resumed_with_its_room_grows_into_the_same_tree(leaves, seed, rng):
    given_spec = spec(ROUNDS, SMALL, 6, seed)
    whole, _ = grown(given_spec, leaves)
    known = rng.randrange(len(leaves))
    part, given_engine = survivors(whole.tree, rng), engine(ENDING)
    resumed = Grower(given_spec, part, given_engine.tokenizer, "m", 2, grant=rooms(leaves)[known])
    _, step = sampled(resumed, resumed.start(), given_engine)
    assert len(resumed.leaves) >= min(9, max(2, leaves[known]))
    for item in rooms(leaves)[known + 1 :]:
        _, step = sampled(resumed, resumed.budget_granted(item), given_engine)
    assert step.grown is not None and shape(resumed) == shape(whole)


@settings(max_examples=40, deadline=None)
@given(SEEDS, SEEDS.map(random.Random))
def test_cuts_by_new_policies_change_no_leaf_count(seed, rng):
    given_spec = spec(ROUNDS, SMALL, 6, seed)

    class Given:
        def plan(self, view, room, draws):
            return given_spec.tree_policy.plan(view, GrowthBudget(7, 0, True), draws)

    grower = grow_anyhow(replace(given_spec, tree_policy=Given()), engine(ENDLESS), rng, cuts=0.3)
    lengths = {
        len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(grower.tree.root)
        for leaf in grower.leaves
    }
    assert len(grower.leaves) == 7 and lengths == {6}


def test_a_round_that_is_known_changes_nothing_and_silence_ends_the_tree():
    given_spec = spec(ROUNDS, SMALL, 6)
    grower = Grower(given_spec, Tree(given_spec.tree_id), engine().tokenizer, "n", grant=room(3, 2))
    _, step = sampled(grower, grower.start(), engine(ENDING))
    assert len(grower.leaves) == 3 and grower.round == 2
    assert grower.budget_granted(room(9, 2)) == grower.budget_granted(room(9, 1)) == type(step)()
    step = grower.budget_withheld()
    assert step.grown is not None and len(step.grown) == 3 and not grower.waits
    (plan,) = step.plans
    assert plan.done and plan.room_lapsed
    (item,) = plan_log.budgets(given_spec, [plan])
    assert item.final


@pytest.mark.parametrize(
    "wrong", [{"start": 1}, {"start": 5, "most": 4}, {"most": 2.5}, {"start": True}]
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidInput):
        spec(ROUNDS, wrong)
