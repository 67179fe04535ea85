"""scope: repaired failures, their places, and the group afterwards; resumed, logged, repeated."""

from math import comb

import pytest

from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import GrowthBudget, Repaired
from banyan.segment import Kind, Origin
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.wire import segments
from methods.generate.scope import Scope
from services.rollout.growth import plan_log, view_digest
from services.rollout.growth.grower import Grower
from services.rollout.growth.scores import LeafScore, TextRepair
from services.rollout.growth.step import GrowthStep
from tests.rollout.growing import ENDLESS, engine, spec

SCOPE = "methods.generate.scope:Scope"
LENGTH = 12


def leaf(number: int) -> Leaf:
    return Leaf(bytes([number]) * 32, 3)


def repaired(step: int, steps: int) -> Repaired:
    return Repaired(leaf(99), (1,), step, steps)


def test_the_most_right_ones_are_repaired_and_never_from_the_first_step() -> None:
    policy = Scope(8, most=2, least=0.3)
    repairs = {
        leaf(0): repaired(1, 9),
        leaf(1): repaired(2, 4),
        leaf(2): repaired(3, 4),
        leaf(3): repaired(3, 4),
    }
    failed = [leaf(n) for n in range(5)]  # nobody knows what is wrong with the last
    assert policy.chosen(failed, repairs) == [leaf(2), leaf(3)]
    assert Scope(8, most=9).chosen(failed, repairs) == [leaf(2), leaf(3)], "a quarter is below 0.3"
    assert Scope(8, most=9, least=0.0).chosen(failed, repairs) == [leaf(2), leaf(3), leaf(1)]


def test_recycling_moves_groups_without_a_lesson_to_those_with_one() -> None:
    """p = 0.05, G = 8: .6634 all wrong, .3366 teach; with q = 0.6 recyclable .7346."""
    p, n, q = 0.05, 8, 0.6
    policy, failed = Scope(n, most=1), [leaf(i) for i in range(n)]
    right = [comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    saved = bool(policy.chosen(failed, {failed[3]: repaired(2, 3)}))
    assert right[0] == pytest.approx(0.6634, abs=5e-5)
    assert sum(right[1:n]) == pytest.approx(0.3366, abs=5e-5)
    assert sum(right[1:n]) + q * right[0] * saved == pytest.approx(0.7346, abs=1e-4)


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"most": 0}, {"least": 1.0}, {"least": -0.1}, {"right": "x"}]
)
def test_bad_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidInput):
        spec(SCOPE, wrong)


# -- a tree --


def sampled(grower: Grower, step: GrowthStep) -> GrowthStep:
    """Step until nothing is in flight; return the last step."""
    item = engine(ENDLESS)
    while step.requests or grower.in_flight:
        for request in step.requests:
            item.submit(request)
        step = grower.ended(item.step())
        RECORDS.extend(step.plans)
    return step


RECORDS: list[tree_pb2.PlanRecord] = []


def begun(tree: Tree | None = None) -> Grower:
    actual = spec(SCOPE, {"width": 3, "most": 1}, LENGTH)
    RECORDS.clear()
    grower = Grower(actual, tree or Tree(actual.tree_id), engine(ENDLESS).tokenizer, "n")
    first = grower.start()
    RECORDS.extend(first.plans)
    step = sampled(grower, first)
    assert step.grown is None and grower.lacks_scores
    return grower


def scores(grower: Grower, right: set[Leaf], repairs: dict[Leaf, TextRepair]) -> list[LeafScore]:
    return [
        LeafScore(leaf, "steps", float(leaf in right), repairs.get(leaf)) for leaf in grower.leaves
    ]


def scored(grower: Grower, right: set[Leaf], repairs: dict[Leaf, TextRepair]) -> GrowthStep:
    step = grower.scored(scores(grower, right, repairs))
    RECORDS.extend(step.plans)
    return step


FIX = TextRepair(keep=5, text="xyz", step=3, steps=4)


def fixed(grower: Grower) -> tuple[Leaf, Leaf]:
    """Return the failed leaf and the leaf of its repair, after one of three was scored wrong."""
    wrong = list(grower.leaves)[1]
    text = grower.completion(wrong)
    step = sampled(grower, scored(grower, set(grower.leaves) - {wrong}, {wrong: FIX}))
    assert step.grown is None and grower.lacks_scores, "the repair waits for its score"
    created = list(grower.leaves)[-1]
    assert (
        created != wrong
        and grower.completion(created)[:8] == text[:5] + "xyz"
        and len(grower.completion(created)) == LENGTH
    )
    assert grower.spec.traits.forks_inside, "engines keep what a repair begins in"
    (forced,) = [s for s in grower.tree if s.kind is Kind.FORCED]
    assert (forced.origin, forced.fork, forced.text, forced.parent) == (
        Origin.TEACHER,
        5,
        "xyz",
        wrong.segment,
    )
    return wrong, created


def test_a_repair_that_is_right_stands_in_the_place_of_what_failed() -> None:
    grower = begun()
    wrong, created = fixed(grower)
    grown = scored(grower, {created}, {}).grown
    assert grown is not None and len(grown) == 3 and created in grown and wrong not in grown


def test_a_repair_that_is_wrong_leaves_the_group_as_it_was() -> None:
    grower = begun()
    wrong, created = fixed(grower)
    grown = scored(grower, set(), {}).grown
    assert grown is not None and len(grown) == 3 and wrong in grown and created not in grown


def test_without_a_failure_or_a_repair_nothing_more_is_sampled() -> None:
    for right, repairs in ((True, False), (False, False), (True, True)):
        grower = begun()
        leaves = set(grower.leaves)
        step = scored(
            grower, leaves if right else set(), dict.fromkeys(leaves, FIX) if repairs else {}
        )
        assert not step.requests and step.grown is not None and set(step.grown) == leaves


def test_what_does_not_fit_the_path_or_the_text_is_not_repaired() -> None:
    for repair in (
        TextRepair(keep=5, text="x" * 7, step=3, steps=4),  # no token left to go on with
        TextRepair(keep=13, text="x", step=3, steps=4),  # more than was said
    ):
        grower = begun()
        leaves = set(grower.leaves)
        step = scored(grower, set(), {next(iter(grower.leaves)): repair})
        assert not step.requests and step.grown is not None and set(step.grown) == leaves


@pytest.mark.parametrize("forced", [False, True])
def test_another_node_goes_on_with_the_repair(forced: bool) -> None:
    """The stored tree ends before the repair, or with its forced tokens."""
    item = begun()
    first = scores(
        item, set(list(item.leaves)[:1] + list(item.leaves)[2:]), {list(item.leaves)[1]: FIX}
    )
    before = list(item.tree)
    fixed(item)
    put = [s for s in item.tree if s.kind is Kind.FORCED] if forced else []
    other = Grower(item.spec, Tree(item.tree.tree_id, [*before, *put]), item.tokenizer, "m", 2)
    assert not other.start().requests and set(other.leaves) == {score.leaf for score in first}
    sampled(other, other.scored(first))
    places = [{(s.parent, s.fork, s.ordinal) for s in grower.tree} for grower in (item, other)]
    assert places[0] == places[1]
    if not forced:  # else what follows the forced tokens is drawn for another branch than both were
        assert {s.id for s in other.tree} == {s.id for s in item.tree} and set(other.leaves) == set(
            item.leaves
        )


def test_its_plans_are_logged_and_made_again() -> None:
    grower = begun()
    wrong, created = fixed(grower)
    scored(grower, {created}, {})
    records = list(RECORDS)
    assert [list(r.dropped) for r in records if r.dropped] == [[segments.leaf_to_wire(wrong)]]
    for record, view in zip(
        records, plan_log.views(grower.spec, grower.tree, records), strict=True
    ):
        assert view_digest.digest(view) == record.view_digest
        plan = grower.spec.tree_policy.plan(view, GrowthBudget(), Draws(grower.spec.seed))
        named = {(e.branch, e.forced, e.origin) for e in plan.expansions}
        for planned in record.expansions:
            branch = plan_log.branch_from_wire(planned.branch)
            origin = Origin(planned.origin) if planned.forced else Origin.BRANCH
            assert (branch, tuple(planned.forced), origin) in named
    last = records[-1]
    assert last.done and dict.fromkeys(
        segments.leaf_from_wire(r.leaf) for r in last.rewards
    ).keys() >= {created}
    assert any(
        r.HasField("repair") and list(r.repair.tokens) for record in records for r in record.rewards
    )
