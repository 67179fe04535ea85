"""Trees that grow by rooms, through a real store: the budget, silence, deaths of gateway and node between rounds."""

import asyncio
import contextlib
from types import SimpleNamespace

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
from services.rollout.growth.grower import GrowthStep
from services.rollout.node.lockstep import Lockstep
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
    async with world(nats_server.url, tmp_path / "state") as made:
        await made.begin()
        await made.policy(0)
        yield made


def gateway(w: World, trees: int, **control) -> BudgetRounds:
    """What drives rooms in a gateway that has the world's epoch."""
    store = RpcStore(w.channel)
    store.epoch = w.epoch
    return BudgetRounds(store, recipe(trees, **control), RUN)


@contextlib.asynccontextmanager
async def running(keeper: BudgetRounds):
    """It looks after every piece of news."""
    news = asyncio.Event()

    async def look() -> None:
        while True:
            await news.wait()
            news.clear()
            await keeper.look()

    tasks = [asyncio.create_task(keeper.hear(news.set)), asyncio.create_task(look())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Verifier:
    """Scores all leaves that there are; `value` of a tree and the place of a leaf."""

    def __init__(self, w: World, trees, value) -> None:
        self.world, self.trees, self.value, self.scored = w, trees, value, set()

    async def once(self) -> None:
        for place, tree in enumerate(self.trees):
            state = await self.world._or_none(tree)
            for segment in [
                s for s in (state.segments if state else ()) if s.parent and s.id not in self.scored
            ]:
                leaf = tree_pb2.LeafRef(segment=segment.id, end=len(segment.tokens) // 4)
                ask = ts.ReadLeavesRequest(leaves=[ts.LeafKey(tree_id=tree, leaf=leaf)])
                if (await rpc.call(self.world.trees.ReadLeaves, ask)).transcripts:
                    await self.say(tree, leaf, self.value(place, segment.ordinal))
                    self.scored.add(segment.id)

    async def say(self, tree, leaf, value) -> None:
        said = tree_pb2.ScoredLeaf(leaf=leaf, scorer="number", scorer_version="1")
        said.score.CopyFrom(tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value))
        message = events_pb2.LeavesScored(
            scores=[events_pb2.LeafScored(run_id=RUN, tree_id=tree, scored=said)]
        )
        await self.world.bus.publish(
            subjects.lineage(RUN, "score"), message, f"s-{leaf.segment.hex()}"
        )

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
    """The first tree is right every other time, the others never."""
    return float(place == 0 and ordinal % 2 == 0)


async def room_of(w: World, tree: bytes) -> tree_pb2.TreeRoom:
    state = await w._or_none(tree)
    return state.room if state else tree_pb2.TreeRoom()


async def rounds_of(w: World, trees) -> set[int]:
    return {(await room_of(w, tree)).round for tree in trees}


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
    said = [plan.room.leaves for plan in answer.tree.plans if plan.HasField("room")]
    assert said == sorted(said) and said[-1] == leaves[0]


async def test_a_tree_that_control_is_silent_about_ends_with_what_it_has(small) -> None:
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
                await first.look()  # it was only slow: it decides the same, and is refused
            assert await rounds_of(small, trees) == {1}
            async with running(gateway(small, 2)):
                states = await small.grown(trees)
    leaves = [len(state.leaves) for state in states]
    assert sum(leaves) == 2 * 6 and leaves[0] > leaves[1]


async def test_another_node_goes_on_with_trees_that_wait(small, eventually) -> None:
    keeper = gateway(small, 1)
    async with small.node("dead") as dead:
        (tree,) = await small.open(1, SMALL, ROUNDS)
        verifier = Verifier(small, [tree], right)
        async with running(keeper):
            await eventually(lambda: _leaves(small, [tree], [2]), 10, "first leaves")
            await verifier.once()
            await eventually(lambda: _leaves(small, [tree], [4]), 10, "leaves of the first round")
        dead.task.cancel()
        await asyncio.wait([dead.task])
    before = await small.state(tree)
    assert before.room.round == 1 and before.room.leaves == 4
    async with small.node("heir") as heir, running(keeper), verifier.running():
        heir.trees.put(await heir._taker._take(FakeDelivery(RUN, tree)))
        heir._again.set()
        (state,) = await small.grown([tree])
    assert ids(before) < ids(state) and len(state.leaves) == 6


async def _is(found, expected) -> bool:
    return await found == expected


async def _leaves(w: World, trees, counts) -> bool:
    states = [await w._or_none(tree) for tree in trees]
    return [len(state.leaves) if state else 0 for state in states] == counts


async def _waits(w: World, trees) -> bool:
    states = [await w.state(tree) for tree in trees]
    return all(len(s.scores) == len(s.leaves) == s.room.leaves for s in states)


def _epoch():
    return rs.TakeGatewayEpochRequest(gateway_id="second")


async def test_in_lockstep_trees_go_on_together_in_their_order() -> None:
    lives = [_Live(n) for n in range(3)]
    growing, acted = list(lives), []

    async def act(works) -> None:
        acted.append([(live.number, work().requests) for live, work in works])

    turns = Lockstep(lambda: growing, act, lambda live, error: None)
    tasks = [asyncio.create_task(turns.take(live, GrowthStep)) for live in (lives[2], lives[0])]
    await asyncio.sleep(0)
    assert not acted, "the second has nothing yet"
    async with asyncio.timeout(5):
        await turns.take(lives[1], GrowthStep)
        await asyncio.gather(*tasks)
    assert acted == [[(0, ()), (1, ()), (2, ())]]
    waits = asyncio.create_task(turns.take(lives[0], GrowthStep))
    await asyncio.sleep(0)
    growing[:] = lives[:1]  # the others ended
    async with asyncio.timeout(5):
        await waits
    assert acted[1:] == [[(0, ())]]


async def test_a_turn_that_cannot_be_carried_out_gives_up_all_of_its_trees() -> None:
    lives = [_Live(n) for n in range(3)]
    growing, given_up = list(lives), []

    async def act(works) -> None:
        growing.remove(lives[1])  # it was given up alone, for what its policy raised
        raise Refused("the log takes nothing")

    def give_up(live, error) -> None:
        given_up.append((live.number, str(error)))
        growing.remove(live)

    turns = Lockstep(lambda: growing, act, give_up)
    async with asyncio.timeout(5):
        await asyncio.gather(*(turns.take(live, GrowthStep) for live in lives))
    assert given_up == [(0, "the log takes nothing"), (2, "the log takes nothing")]


class _Live:
    def __init__(self, number: int) -> None:
        self.number, self.spec = number, SimpleNamespace(order=(number, 0))
