"""dars (arXiv 2508.13755): its table, and trees that wait for scores.

They are grown, resumed, logged, and left without scores.
"""

import asyncio
from math import comb

import pytest
import pytest_asyncio

from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import GrowthBudget
from banyan.tree import Leaf, Tree
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire import segments as wire
from methods.generate.dars import Dars, extra
from services.chassis.messaging import subjects
from services.chassis.rpc import rpc
from services.rollout.growth import plan_log, view_digest
from services.rollout.growth.grower import Grower
from services.rollout.growth.scores import LeafScore
from tests.rollout.growing import ENDING, engine, spec
from tests.rollout.node.test_node import FakeDelivery
from tests.rollout.world import RUN, World, ids, world

DARS = "methods.generate.dars:Dars"
SMALL = {"width": 4, "max_width": 8}


@pytest.mark.parametrize(
    ("schedule", "standardised", "most", "table"),
    [
        ("equal", False, 32, [24, 11, 3, 1, 0, 0]),
        ("hardness", False, 64, [56, 24, 8, 3, 0, 0]),
        ("equal", True, 32, [9, 5, 2, 1, 0, 0]),
        ("hardness", True, 64, [23, 14, 6, 3, 0, 0]),
    ],
)
def test_the_table_of_the_paper(
    schedule: str, standardised: bool, most: int, table: list[int]
) -> None:
    assert [extra(right / 8, 8, most, schedule, standardised) for right in range(6)] == table


def test_eleven_more_reach_the_level_of_a_medium_prompt_and_ten_do_not() -> None:
    share = 2 * (1 / 8) * (7 / 8)
    assert (8 + 11) * share >= 4 > (8 + 10) * share


def test_the_hard_prompt_of_the_paper() -> None:
    """Example with p = .05, N = 8, equal treatment up to 32."""
    p, n = 0.05, 8
    chance = [comb(n, right) * p**right * (1 - p) ** (n - right) for right in range(n + 1)]
    more = [extra(right / n, n, 32, "equal", False) for right in range(n + 1)]
    expected = sum(c * m for c, m in zip(chance, more, strict=True))
    assert expected == pytest.approx(19.15, abs=5e-3)
    assert 1 - chance[0] == pytest.approx(0.337, abs=5e-4) and n + more[0] == 32
    assert 1 - chance[0] * (1 - p) ** more[0] == pytest.approx(0.806, abs=5e-4)
    assert p * n == pytest.approx(0.40) and p * (n + expected) == pytest.approx(1.36, abs=5e-3)


def test_what_could_not_be_scored_takes_no_part() -> None:
    policy = Dars(8, 32)
    assert (
        policy.more([]) == 0
        and policy.more([0.0, 1.0]) == 0
        and policy.more([0.0] * 7 + [1.0]) == 11
    )


def scores(
    grower: Grower, value: float | None, leaves: list[Leaf] | None = None
) -> list[LeafScore]:
    return [
        LeafScore(leaf, "number", value) for leaf in (grower.leaves if leaves is None else leaves)
    ]


def started(tree: Tree | None = None) -> tuple[Grower, list[tree_pb2.PlanRecord]]:
    """Return a grower after stage 1, and its records."""
    tree_spec, scripted = spec(DARS, SMALL, 9), engine(ENDING)
    grower = Grower(tree_spec, tree or Tree(tree_spec.tree_id), scripted.tokenizer, "n")
    records, step = [], grower.start()
    while step.requests or grower.in_flight:
        records += step.plans
        for request in step.requests:
            scripted.submit(request)
        step = grower.ended(scripted.step())
    assert step.grown is None
    return grower, [*records, *step.plans]


def finished(grower: Grower, requests: tuple) -> tuple[Leaf, ...] | None:
    scripted, step = engine(ENDING), None
    for request in requests:
        scripted.submit(request)
    while scripted.busy:
        step = grower.ended(scripted.step())
    return step.grown if step is not None else None


@pytest.mark.parametrize(("value", "more"), [(0.0, 4), (1.0, 0), (None, 0)])
def test_stage_two_follows_from_the_scores(value: float | None, more: int) -> None:
    grower, _ = started()
    assert len(grower.leaves) == 4 and grower.waits
    step = grower.scored(scores(grower, value))
    assert len(step.requests) == more
    grown = finished(grower, step.requests) if more else step.grown
    assert grown is not None and len(grown) == 4 + more and not grower.waits


def test_a_part_of_the_scores_decides_nothing() -> None:
    grower, _ = started()
    first = next(iter(grower.leaves))
    step = grower.scored(scores(grower, 0.0, [first]))
    assert not step.requests and step.grown is None and grower.waits
    step = grower.unscored()
    assert len(step.requests) == 4, "the one that was scored is wrong, the others count for nothing"


def test_a_tree_resumed_after_stage_one_asks_for_stage_two() -> None:
    grower, _ = started()
    repeated = Grower(
        grower.spec, Tree(grower.tree.tree_id, list(grower.tree)), engine().tokenizer, "m", 2
    )
    step = repeated.start()
    assert not step.requests and set(repeated.leaves) == set(grower.leaves) and repeated.waits
    expected = {r.draw_key for r in grower.scored(scores(grower, 0.0)).requests}
    assert {r.draw_key for r in repeated.scored(scores(repeated, 0.0)).requests} == expected


def test_a_plan_by_scores_is_logged_and_made_again() -> None:
    grower, records = started()
    step = grower.scored(scores(grower, 0.0))
    (plan,) = step.plans
    assert [r.value for r in plan.rewards] == [0.0] * 4
    records.append(plan)
    for record, view in zip(
        records, plan_log.views(grower.spec, grower.tree, records), strict=True
    ):
        assert view_digest.digest(view) == record.view_digest
        plan = grower.spec.tree_policy.plan(view, GrowthBudget(), Draws(grower.spec.seed))
        there = len(view.tree) - 1
        assert len(plan.expansions) + there == (8 if record.rewards else 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": True},
        {"right": None},
        {"width": 9, "max_width": 8},
        {"schedule": "even"},
        {"max_width": True, "width": 2},
    ],
)
def test_bad_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidInput):
        spec(DARS, wrong)


# -- through a store --


@pytest_asyncio.fixture
async def small(nats_server, tmp_path):
    async with world(nats_server.url, tmp_path / "state") as created:
        yield created


async def score(w: World, tree: bytes, segments: list[tree_pb2.Segment], value: float) -> None:
    """Return a verifier's scores of the leaves at the ends of these segments."""
    for segment in segments:
        leaf = tree_pb2.LeafRef(segment=segment.id, end=len(segment.tokens) // 4)
        output = tree_pb2.ScoredLeaf(leaf=leaf, scorer="number", scorer_version="1")
        output.score.CopyFrom(tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value))
        message = events_pb2.LeavesScored(
            scores=[events_pb2.LeafScored(run_id=RUN, tree_id=tree, scored=output)]
        )
        await w.bus.publish(subjects.lineage(RUN, "score"), message, f"s-{segment.id.hex()}")


async def answers(w: World, tree: bytes) -> list[tree_pb2.Segment]:
    state = await w._or_none(tree)
    return [] if state is None else [s for s in state.segments if s.parent]


async def count(w: World, tree: bytes, least: int) -> bool:
    result = await answers(w, tree)
    keys = [
        ts.LeafKey(tree_id=tree, leaf=tree_pb2.LeafRef(segment=s.id, end=len(s.tokens) // 4))
        for s in result
    ]
    answer = await rpc.call(w.trees.ReadLeaves, ts.ReadLeavesRequest(leaves=keys))
    return len(result) >= least and len(answer.transcripts) == len(result)


async def test_a_node_waits_for_scores_and_samples_more(small, eventually):
    await small.begin()
    await small.policy(0)
    async with small.node():
        hard, easy = await small.open(2, SMALL, DARS)
        for tree in (hard, easy):
            await eventually(lambda tree=tree: count(small, tree, 4), 10, "stage 1")
        await score(small, hard, await answers(small, hard), 0.0)
        await score(small, easy, await answers(small, easy), 1.0)
        first, second = await small.grown([hard, easy])
        assert (len(first.leaves), len(second.leaves)) == (8, 4)


async def test_another_node_goes_on_with_the_scores_that_are_there(small, eventually):
    await small.begin()
    await small.policy(0)
    async with small.node("dead") as dead:
        (tree,) = await small.open(1, SMALL, DARS)
        await eventually(lambda: count(small, tree, 4), 10, "stage 1")
        dead.task.cancel()
        await asyncio.wait([dead.task])
    await score(small, tree, await answers(small, tree), 0.0)
    before = ids(await small.state(tree))
    async with small.node("heir") as heir:
        heir.trees.put(await heir._claimer.claim_one(FakeDelivery(RUN, tree)))
        (state,) = await small.grown([tree])
        assert before < ids(state) and len(state.leaves) == 8


async def test_scores_that_do_not_come_are_not_waited_for_ever(small, eventually):
    await small.begin()
    await small.policy(0)
    async with small.node():
        (tree,) = await small.open(1, SMALL, DARS, score_deadline_ms=700)
        (state,) = await small.grown([tree])
        assert len(state.leaves) == 4


def test_a_leaf_has_its_reward_when_all_scorers_have_spoken() -> None:
    leaf = tree_pb2.LeafRef(segment=b"s", end=3)
    output = {"b": 0.1, "a": 0.2, "c": 0.7}
    all_of = [
        tree_pb2.ScoredLeaf(
            leaf=leaf, scorer=k, score=tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=v)
        )
        for k, v in output.items()
    ]
    assert wire.rewards_from_wire(all_of[:2], 3) == {}
    rewards = wire.rewards_from_wire(all_of, 3)
    assert rewards == wire.rewards_from_wire(all_of[::-1], 3) and rewards[
        Leaf(b"s", 3)
    ] == pytest.approx(1 / 3)
