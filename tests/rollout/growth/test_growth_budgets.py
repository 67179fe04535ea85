"""Trees that grow by growth budgets, on a real store.

The budget is spent, control is silent, gateway or node dies between rounds.
"""

import asyncio
import contextlib

import pytest
import pytest_asyncio

from banyan.errors import Refused
from banyan.recipe_loader.load import resolve
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.messaging import subjects
from services.chassis.rpc import rpc
from services.gateway.allocation.budget_rounds import BudgetRounds
from services.gateway.clients.treestore import RpcStore
from tests.rollout.node.test_node import FakeDelivery
from tests.rollout.world import RUN, World, ids, world

ROUNDS = "methods.generate.rounds:Rounds"
SMALL = {"start": 2, "most": 16}


def recipe(trees: int, rollouts: int = 6, **control):
    rooms = {"rooms": "xrpo", "rooms_settings": {"rollouts": rollouts, "phases": 3, "bonus": 0.02}}
    return resolve(
        {
            "name": "small",
            "model": "none",
            "task": {"name": "arithmetic"},
            "generate": {"policy": ROUNDS, "settings": SMALL},
            "control": {"groups_per_batch": trees, **rooms, **control},
        }
    )


@pytest_asyncio.fixture
async def small(nats_server, tmp_path):
    async with world(nats_server.url, tmp_path / "state") as w:
        await w.begin()
        await w.policy(0)
        yield w


def gateway(w: World, trees: int, **control) -> BudgetRounds:
    """Return the driver of growth budgets in a gateway that has the world's epoch."""
    store = RpcStore(w.channel)
    store.epoch = w.epoch
    return BudgetRounds(store, recipe(trees, **control), RUN)


@contextlib.asynccontextmanager
async def running(rounds: BudgetRounds):
    """Reconcile after every piece of news, within the block."""
    news = asyncio.Event()

    async def reconcile() -> None:
        while True:
            await news.wait()
            news.clear()
            await rounds.reconcile()

    tasks = [asyncio.create_task(rounds.subscribe(news.set)), asyncio.create_task(reconcile())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Verifier:
    """A verifier of all leaves; `value` gives a score by tree and place of the leaf."""

    def __init__(self, w: World, trees, value) -> None:
        self.world, self.trees, self.value, self.scored = w, trees, value, set()

    async def once(self) -> None:
        for place, tree in enumerate(self.trees):
            state = await self.world._or_none(tree)
            segments = [s for s in state.segments if s.parent] if state else []
            for segment in segments:
                if segment.id in self.scored:
                    continue
                leaf = tree_pb2.LeafRef(segment=segment.id, end=len(segment.tokens) // 4)
                request = ts.ReadLeavesRequest(leaves=[ts.LeafKey(tree_id=tree, leaf=leaf)])
                if (await rpc.call(self.world.trees.ReadLeaves, request)).transcripts:
                    await self.publish(tree, leaf, self.value(place, segment.ordinal))
                    self.scored.add(segment.id)

    async def publish(self, tree, leaf, value) -> None:
        score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
        scored = tree_pb2.ScoredLeaf(leaf=leaf, scorer="number", scorer_version="1", score=score)
        message = events_pb2.LeavesScored(
            scores=[events_pb2.LeafScored(run_id=RUN, tree_id=tree, scored=scored)]
        )
        subject = subjects.lineage(RUN, "score")
        await self.world.bus.publish(subject, message, f"s-{leaf.segment.hex()}")

    @contextlib.asynccontextmanager
    async def running(self):
        async def always() -> None:
            while True:
                await self.once()
                await asyncio.sleep(0.02)

        task = asyncio.create_task(always())
        try:
            yield
        finally:
            task.cancel()


def right(place: int, ordinal: int) -> float:
    """Score the first tree as right every other time, the others never."""
    return float(place == 0 and ordinal % 2 == 0)


async def budget_of(w: World, tree: bytes) -> tree_pb2.TreeRoom:
    state = await w._or_none(tree)
    return state.room if state else tree_pb2.TreeRoom()


async def rounds_of(w: World, trees) -> set[int]:
    return {(await budget_of(w, tree)).round for tree in trees}


async def test_the_budget_is_spent_where_the_spread_is(small) -> None:
    async with small.node():
        trees = await small.open(3, SMALL, ROUNDS)
        async with running(gateway(small, 3)), Verifier(small, trees, right).running():
            states = await small.grown(trees)
    leaves = [len(state.leaves) for state in states]
    assert sum(leaves) == 3 * 6 and leaves[0] > max(leaves[1:]) and min(leaves) >= 2
    assert [state.room.leaves for state in states] == leaves and all(
        state.room.final for state in states
    )
    answer = await rpc.call(small.trees.GetTree, ts.GetTreeRequest(tree_id=trees[0], plans=True))
    grants = [plan.room.leaves for plan in answer.tree.plans if plan.HasField("room")]
    assert grants == sorted(grants) and grants[-1] == leaves[0]


async def test_a_tree_ends_with_its_leaves_if_control_is_silent(small) -> None:
    async with small.node():
        (tree,) = await small.open(1, SMALL, ROUNDS, score_deadline_ms=400)
        (state,) = await small.grown([tree])
    assert len(state.leaves) == 2
    answer = await rpc.call(small.trees.GetTree, ts.GetTreeRequest(tree_id=tree, plans=True))
    assert answer.tree.plans[-1].room_lapsed and answer.tree.plans[-1].done


async def test_a_second_gateway_goes_on_between_rounds(small, eventually) -> None:
    first = gateway(small, 2)
    async with small.node():
        trees = await small.open(2, SMALL, ROUNDS)
        verifier = Verifier(small, trees, right)
        async with running(
            first
        ):  # dies after its first round: nothing is scored, so there is no second
            await eventually(lambda: _leaves(small, trees, [2, 2]), 10, "first leaves")
            await verifier.once()
            await eventually(lambda: _is(rounds_of(small, trees), {1}), 10, "the first round")
        small.epoch += 1
        await rpc.call(small.runs.TakeGatewayEpoch, _epoch())
        async with verifier.running():
            await eventually(
                lambda: _waits(small, trees), 10, "all leaves of the first round are scored"
            )
            with pytest.raises(Refused, match="gateway epoch"):
                await first.reconcile()  # it was only slow, decides the same, and is refused
            assert await rounds_of(small, trees) == {1}
            async with running(gateway(small, 2)):
                states = await small.grown(trees)
    leaves = [len(state.leaves) for state in states]
    assert sum(leaves) == 2 * 6 and leaves[0] > leaves[1]


async def test_another_node_goes_on_with_trees_that_wait(small, eventually) -> None:
    rounds = gateway(small, 1)
    async with small.node("dead") as dead:
        (tree,) = await small.open(1, SMALL, ROUNDS)
        verifier = Verifier(small, [tree], right)
        async with running(rounds):
            await eventually(lambda: _leaves(small, [tree], [2]), 10, "first leaves")
            await verifier.once()
            await eventually(lambda: _leaves(small, [tree], [4]), 10, "leaves of the first round")
        dead.task.cancel()
        await asyncio.wait([dead.task])
    before = await small.state(tree)
    assert before.room.round == 1 and before.room.leaves == 4
    async with small.node("heir") as heir, running(rounds), verifier.running():
        heir.trees.put(await heir._claimer.claim_one(FakeDelivery(RUN, tree)))
        (state,) = await small.grown([tree])
    assert ids(before) < ids(state) and len(state.leaves) == 6


async def _is(pending, expected) -> bool:
    return await pending == expected


async def _leaves(w: World, trees, counts) -> bool:
    states = [await w._or_none(tree) for tree in trees]
    return [len(state.leaves) if state else 0 for state in states] == counts


async def _waits(w: World, trees) -> bool:
    states = [await w.state(tree) for tree in trees]
    return all(len(s.scores) == len(s.leaves) == s.room.leaves for s in states)


def _epoch():
    return rs.TakeGatewayEpochRequest(gateway_id="second")
