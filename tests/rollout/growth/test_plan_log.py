"""Logged plans: the same plan is made again from the stored tree."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings

from banyan.draws import Draws, key
from banyan.plugins import Expansion
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire import plain_data, segments
from services.chassis.rpc import rpc
from services.rollout.growth import plan_log, plan_records, view_digest
from services.rollout.growth import spec as specs
from services.rollout.growth.grants import BudgetGrant
from services.rollout.growth.grower import Grower
from services.rollout.growth.scores import LeafScore, TextRepair
from services.rollout.growth.step import GrowthStep
from tests.methods.generate.test_planners import ANY, SEEDS
from tests.rollout.growing import ENDING, IID, TREEPO, engine, spec, survivors
from tests.rollout.node.test_node import SLOW, small  # noqa: F401

TREE = {
    "segment": 3,
    "max_depth": 4,
    "width": 9,
    "fallback": "random",
    "budget": "logprob_weighted",
}


def _replayed(assignment, whole, records):
    """Replay the records of one claim.

    Each view must be the one that was logged, each plan the one that was executed. The order within
    a plan does not matter.
    """
    replay = zip(
        plan_records.plans(records),
        plan_log.views(assignment, whole, records),
        plan_log.budgets(assignment, records),
        strict=True,
    )
    for record, view, budget in replay:
        assert view_digest.digest(view, budget=budget) == record.view_digest, (
            f"the view of plan {record.number} is another"
        )
        plan = assignment.tree_policy.plan(view, budget, Draws(assignment.seed))
        new = {
            e.branch: e
            for e in plan.expansions
            if e.branch not in view.in_flight and not _there(view, e)
        }
        logged = _bytes(record.expansions)
        assert _bytes(map(plan_log.expansion_to_wire, new.values())) == logged
        marks = {(m.leaf, m.reason) for m in plan.leaves if m.leaf not in view.leaves}
        assert (
            marks == {(segments.leaf_from_wire(p.leaf), p.reason) for p in record.leaves}
            and plan.done == record.done
        )


def _bytes(messages):
    return sorted(message.SerializeToString(deterministic=True) for message in messages)


def _there(view, expansion: Expansion) -> bool:
    branch = expansion.branch
    return view.tree.at(branch.parent, branch.fork, branch.ordinal) is not None


def _grown(assignment, tree, claim, most_steps, leaves=(), branches=3):
    """Grow under one claim; return the grower, its records, and whether the tree is done."""
    scripted = engine(ENDING, max_branches=branches)
    grower = Grower(assignment, tree, scripted.tokenizer, "n", claim, dict.fromkeys(leaves, ""))
    records, step = [], grower.start()
    for _ in range(most_steps):
        records += step.plans
        for request in step.requests:
            scripted.submit(request)
        if step.grown is not None:
            return grower, records, True
        step = _answered(grower) if grower.waits else grower.ended(scripted.step())
    return grower, records, False


def _answered(grower: Grower) -> GrowthStep:
    """Give the tree policy rewards, some with a repair, and then a final growth budget."""
    if not grower.lacks_scores:
        return grower.budget_granted(BudgetGrant(leaves=7, final=True, round=1))
    scores = []
    for leaf in grower.leaves:
        is_right = key(1, "reward", leaf.segment, leaf.end) % 3 == 0
        repair = None if is_right else TextRepair(keep=1, text="b", step=2, steps=3)
        scores.append(LeafScore(leaf, "number", float(is_right), repair))
    return grower.scored(scores)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", [IID, TREEPO])
def test_a_logged_plan_is_the_plan_of_its_view(policy, seed) -> None:
    settings = TREE if policy == TREEPO else {"width": 6}
    assignment, rng = spec(policy, settings, 12, seed), random.Random(seed)
    first, records, _ = _grown(assignment, Tree(assignment.tree_id), 1, rng.randint(1, 25))
    whole = Tree(assignment.tree_id)
    for segment in first.tree:
        whole.add(segment)
    assert [r.number for r in records] == list(range(len(records))) and records
    _replayed(assignment, whole, records)
    left = survivors(first.tree, rng)  # another node goes on with what the store has
    known = [leaf for leaf in first.leaves if leaf.segment in left.segments]
    resumed, more, done = _grown(assignment, left, 2, 1000, known)
    assert done and (more[-1].done if more else True)
    _replayed(assignment, resumed.tree, more)


@settings(max_examples=120, deadline=None)
@given(ANY, SEEDS)
def test_the_plans_of_every_policy_are_made_again(policy, seed) -> None:
    assignment = spec(*policy, 12, seed)
    grower, records, done = _grown(assignment, Tree(assignment.tree_id), 1, 1000)
    assert done and records[-1].done
    _replayed(assignment, grower.tree, records)


def test_a_plan_that_is_too_large_for_a_record_goes_on_in_the_next_ones() -> None:
    assignment = spec(IID, {"width": 2000}, 3)
    grower, records, done = _grown(assignment, Tree(assignment.tree_id), 1, 1000, branches=2048)
    assert done and len(grower.leaves) == 2000 and records[-1].done
    assert max(record.ByteSize() for record in records) <= plan_log._PLAN_BYTES
    assert [record.number for record in records] == list(range(len(records)))
    assert not any(record.full for record in records)
    plans = list(plan_records.plans(records))
    assert len(plans[0].expansions) == 2000 and len(plans) < len(records)
    assert sum(len(plan.leaves) for plan in plans) == 2000
    _replayed(assignment, grower.tree, records)
    assert list(plan_records.plans(records[:1])) == [], "half a plan is none"


def test_a_branch_that_ended_without_a_token_is_asked_for_again_and_logged() -> None:
    assignment = spec(IID, {"width": 3}, 6)
    scripted = engine(ENDING)
    grower = Grower(assignment, Tree(assignment.tree_id), scripted.tokenizer, "n", 1)
    step = grower.start()
    for request in step.requests:
        scripted.submit(request)
    cut = scripted.abort(step.requests[1].key)
    assert cut is not None and not len(cut.tokens_T)
    next_step = grower.ended([cut])
    records = [*step.plans, *next_step.plans]
    assert len(next_step.requests) == 1 and len(records) == 2 and len(records[1].gone) == 1
    _replayed(assignment, grower.tree, records)


def test_the_log_is_bounded_has_no_gap_and_says_where_it_ends(monkeypatch) -> None:
    assignment = spec(TREEPO, TREE, 12, 3)
    _, all_records, _ = _grown(assignment, Tree(assignment.tree_id), 1, 1000)
    monkeypatch.setattr(plan_log, "_CLAIM_BYTES", sum(r.ByteSize() for r in all_records[:3]))
    grower, records, done = _grown(assignment, Tree(assignment.tree_id), 1, 1000)
    assert done and records[:3] == all_records[:3]
    assert records[3:] == [tree_pb2.PlanRecord(claim_epoch=1, number=3, full=True)]
    assert plain_data.plan(records[3])["full"] and not plain_data.plan(records[2])["full"]
    _replayed(assignment, grower.tree, records)


def test_another_view_has_another_digest() -> None:
    assignment = spec(IID, {"width": 3}, 6)
    grower, records, _ = _grown(assignment, Tree(assignment.tree_id), 1, 1000)
    digests = {r.view_digest for r in records}
    assert len(digests) == len(records) >= 2
    view = next(plan_log.views(assignment, grower.tree, records))
    more = Leaf(view.root.id, len(view.root))
    leaves = ({more: ""}, {more: "stop"})
    changes = [{"seed": 9}, {"max_path_tokens": 7}, *({"leaves": marked} for marked in leaves)]
    for change in changes:
        assert view_digest.digest(replace(view, **change)) not in digests


async def test_plans_are_stored_with_the_tree_and_replay_from_it(small) -> None:  # noqa: F811
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node():
        opened = await small.open(2, TREE, TREEPO, max_new_tokens=12)
        await small.grown(opened)
    for tree_id in opened:
        request = ts.GetTreeRequest(tree_id=tree_id, plans=True)
        stored = (await rpc.call(small.trees.GetTree, request)).tree
        assert stored.plans and stored.plans[-1].done and not (await small.state(tree_id)).plans
        _replayed(specs.from_wire(stored.spec), segments.tree_from_wire(stored), list(stored.plans))


async def test_a_large_plan_is_stored_in_parts(small) -> None:  # noqa: F811
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node():
        (tree_id,) = await small.open(1, {"width": 1200}, IID, max_new_tokens=2)
        await small.grown([tree_id])
    request = ts.GetTreeRequest(tree_id=tree_id, plans=True)
    stored = (await rpc.call(small.trees.GetTree, request)).tree
    records = list(stored.plans)
    assert records[0].more and records[-1].done and not any(record.full for record in records)
    assert len(next(plan_records.plans(records)).expansions) == 1200
    _replayed(specs.from_wire(stored.spec), segments.tree_from_wire(stored), records)
