"""The execution of steps: what reaches the engine, the log and the waits, and what ends a tree."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.plugins.traits import PolicyTraits
from services.chassis.process.telemetry import Span
from services.rollout.engines.thread import Refusal
from services.rollout.growth.step import Call, GrowthStep
from services.rollout.node.acting import Acting
from services.rollout.node.active_trees import ActiveTree, ActiveTrees, TreeState
from services.rollout.node.step_executor import StepExecutor
from services.rollout.node.tracing import Spans
from services.rollout.timeouts import BackgroundTasks


class Engine:
    """An engine's thread that keeps its commands in order."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.refusals: list[Refusal] = []
        self.cut: list[Any] = []

    def submit(self, requests: Any, turn: bool) -> "Future[list[Refusal]]":
        self.commands.append(("submit", [request.key for request in requests]))
        if turn:
            self.turn()
        answer: Future[list[Refusal]] = Future()
        answer.set_result(self.refusals)
        return answer

    def turn(self) -> None:
        self.commands.append("turn")

    def pause(self) -> None:
        self.commands.append("pause")

    async def abort(self, keys: Any) -> list[Any]:
        self.commands.append(("abort", list(keys)))
        return self.cut


class Rig:
    """An executor between an engine, a reporter and a completer that only keep notes."""

    def __init__(self, lockstep: bool = False, environments: Any = None) -> None:
        self.trees, self.engine, self.tasks = ActiveTrees(8, 8), Engine(), BackgroundTasks()
        self.spans = Spans()
        self.reported: list[list[GrowthStep]] = []
        self.returned: list[str] = []
        self.executor = StepExecutor(
            self.trees,
            self.engine,  # type: ignore[arg-type]
            reporter=SimpleNamespace(report=self._report),  # type: ignore[arg-type]
            completer=SimpleNamespace(  # type: ignore[arg-type]
                flush_and_return=self._return, or_abandoned=self._or_abandoned
            ),
            spans=self.spans,
            acting=Acting(environments, self.trees, self.tasks, lockstep),
            tasks=self.tasks,
            lockstep=lockstep,
        )

    async def _report(self, steps: Any) -> None:
        self.engine.commands.append("report")
        self.reported.append([step for _, step in steps])

    async def _return(self, tree: ActiveTree, reason: str) -> None:
        self.engine.commands.append("return")
        self.returned.append(reason)
        self.trees.remove(tree)

    @asynccontextmanager
    async def _or_abandoned(self, tree: ActiveTree) -> AsyncIterator[None]:
        try:
            yield
        except UnicodeError:
            self.engine.commands.append("abandon")
            self.trees.remove(tree)

    def tree(self, number: int = 0, **grower: Any) -> ActiveTree:
        tree_id = bytes([number]) * 32
        spec: Any = SimpleNamespace(tree_id=tree_id, traits=PolicyTraits())
        methods = {"waits": False, "in_flight": {}, "key": lambda branch: (tree_id, 1, branch)}
        tree = ActiveTree(
            spec=spec,
            grower=SimpleNamespace(**methods | grower),  # type: ignore[arg-type]
            epoch=1,
            delivery=SimpleNamespace(ack=self._ack),  # type: ignore[arg-type]
            span=Span(),
        )
        self.trees.put(tree)
        return tree

    async def _ack(self) -> None:
        self.engine.commands.append("ack")


def request(number: int) -> Any:
    return SimpleNamespace(key=(bytes([number]) * 32, 1, "branch"))


def sample(number: int, claim: int = 1) -> Any:
    return SimpleNamespace(key=(bytes([number]) * 32, claim, "branch"))


async def settled(rig: Rig) -> None:
    async with asyncio.timeout(5):
        while rig.tasks._tasks:
            await asyncio.sleep(0)


async def test_requests_of_all_trees_reach_the_engine_before_events_are_reported() -> None:
    rig = Rig()
    trees = [
        rig.tree(number, start=lambda number=number: GrowthStep(requests=(request(number),)))
        for number in range(2)
    ]
    await rig.executor.start(trees)
    keys = [request(number).key for number in range(2)]
    assert rig.engine.commands == [("submit", keys), "report"]
    assert [tree.state for tree in trees] == [TreeState.GROWING] * 2


async def test_a_draining_node_asks_for_nothing_more() -> None:
    rig = Rig()
    rig.trees.draining = True
    await rig.executor.start([rig.tree(start=lambda: GrowthStep(requests=(request(0),)))])
    assert rig.engine.commands == ["report"]


@pytest.mark.parametrize("lockstep", [False, True])
async def test_in_lockstep_the_engine_is_told_that_its_step_was_answered(lockstep: bool) -> None:
    rig = Rig(lockstep)
    await rig.executor.receive([], is_turn=True)
    assert rig.engine.commands == (["turn", "report"] if lockstep else ["report"])
    rig.engine.commands.clear()
    await rig.executor.start([])  # as the starter does at each look
    assert not rig.engine.commands


@pytest.mark.parametrize("lockstep", [False, True])
async def test_in_lockstep_the_engine_takes_no_step_before_the_last_answer(lockstep: bool) -> None:
    answers: asyncio.Queue[Any] = asyncio.Queue()

    async def act(*_: Any, **__: Any) -> Any:
        return await answers.get()

    rig = Rig(lockstep, SimpleNamespace(act=act))
    calls = tuple(Call(bytes([number]) * 32, "") for number in range(2))
    begun = GrowthStep(requests=(request(0),), calls=calls)
    onward = GrowthStep(requests=(request(0),))
    tree = rig.tree(start=lambda: begun, answered=lambda action, answer: onward)
    await rig.executor.start([tree])
    submitted = ("submit", [request(0).key])
    assert rig.engine.commands == [*(["pause"] if lockstep else []), submitted, "report"]
    rig.engine.commands.clear()
    await rig.executor.receive([], is_turn=True)  # of segments that ended meanwhile
    assert rig.engine.commands == ["report"]
    rig.engine.commands.clear()
    for _ in range(2):
        answers.put_nowait("answer")
    await settled(rig)
    both = ("submit", 2 * submitted[1])
    assert rig.engine.commands == (
        [both, "turn", "report"] if lockstep else 2 * [submitted, "report"]
    )


async def test_samples_reach_their_grower_or_their_visitor() -> None:
    rig = Rig()
    ended: list[Any] = []

    def take(samples: Any) -> GrowthStep:
        ended.extend(samples)
        return GrowthStep()

    await rig.executor.start([rig.tree(start=GrowthStep, ended=take)])
    visitor: asyncio.Queue[Any] = asyncio.Queue()
    rig.executor.treeless_queues["visit",] = visitor
    own, stale, visit = sample(0), sample(0, claim=7), SimpleNamespace(key=("visit",))
    await rig.executor.receive([own, stale, visit])
    assert ended == [own] and visitor.get_nowait() is visit


async def test_an_error_of_a_tree_policy_ends_its_tree_alone() -> None:
    rig = Rig()

    def fail() -> GrowthStep:
        raise ZeroDivisionError("in a user's policy")

    bad, good = rig.tree(0, start=fail), rig.tree(1, start=GrowthStep)
    await rig.executor.start([bad, good])
    await settled(rig)
    assert rig.returned == ["UNUSABLE: ZeroDivisionError: in a user's policy"]
    assert list(rig.trees) == [good] and good.state is TreeState.GROWING


async def test_a_tree_whose_return_fails_does_not_stay_claimed() -> None:
    rig = Rig()

    async def fail(keys: Any) -> list[Any]:
        raise UnicodeError("of any kind")

    rig.engine.abort = fail  # type: ignore[method-assign]
    tree = rig.tree(start=GrowthStep)
    await rig.executor.start([tree])
    rig.executor.give_up(tree, "why")
    await settled(rig)
    assert rig.engine.commands[-1] == "abandon" and not len(rig.trees)


async def test_refused_requests_return_their_tree_once() -> None:
    rig = Rig()
    key = request(0).key
    rig.engine.refusals = [Refusal(key, "too long"), Refusal(key, "too long")]
    await rig.executor.start([rig.tree(start=lambda: GrowthStep(requests=(request(0),)))])
    await asyncio.sleep(0.01)
    await settled(rig)
    assert rig.returned == ["UNUSABLE: too long"] and not len(rig.trees)


async def test_a_tree_that_waits_is_handed_over_once() -> None:
    rig = Rig()
    tree = rig.tree(waits=True, start=GrowthStep, ended=lambda samples: GrowthStep())
    await rig.executor.start([tree])
    await rig.executor.receive([sample(0)])
    assert tree.state is TreeState.AWAITING
    assert rig.executor.waiting.get_nowait() is tree and rig.executor.waiting.empty()


async def test_a_finishing_tree_is_not_changed() -> None:
    """Its branches were stopped already: requests would be sampled for no tree."""
    rig = Rig()
    tree = rig.tree(start=GrowthStep)
    await rig.executor.start([tree])
    rig.executor.give_up(tree, "UNABLE: first")
    rig.executor.give_up(tree, "UNABLE: second")
    await rig.executor.act(tree, lambda: GrowthStep(requests=(request(0),)))
    await settled(rig)
    assert rig.returned == ["UNABLE: first"]
    assert not [command for command in rig.engine.commands if command[0] == "submit"]


async def test_branches_that_a_plan_prunes_are_stopped() -> None:
    rig = Rig()
    branches: Any = ("branch",)
    await rig.executor.start([rig.tree(start=lambda: GrowthStep(aborts=branches))])
    assert ("abort", [request(0).key]) in rig.engine.commands


@pytest.mark.parametrize("ack", [True, False])
async def test_a_dropped_tree_has_its_branches_stopped(ack: bool) -> None:
    rig = Rig()
    tree = rig.tree(in_flight={"branch": 1})
    await rig.executor.drop(tree, "another node has it", ack=ack)
    await rig.executor.drop(tree, "another node has it", ack=ack)
    assert rig.engine.commands == [("abort", [request(0).key])] + ["ack"] * ack


async def test_samples_of_a_finishing_tree_do_not_reach_its_grower() -> None:
    rig = Rig()
    ended: list[Any] = []

    def take(samples: Any) -> GrowthStep:
        ended.extend(samples)
        return GrowthStep()

    tree = rig.tree(start=GrowthStep, ended=take)
    await rig.executor.start([tree])
    rig.executor.give_up(tree, "UNABLE: first")
    await rig.executor.receive([sample(0)])
    await settled(rig)
    assert not ended


async def test_a_tree_is_returned_once_its_branches_are_stopped() -> None:
    """Else this node samples a tree that another one may have claimed."""
    rig = Rig()
    tree = rig.tree(start=GrowthStep, in_flight={"branch": 1})
    await rig.executor.start([tree])
    rig.executor.give_up(tree, "UNABLE: first")
    await settled(rig)
    assert rig.engine.commands == ["report", ("abort", [request(0).key]), "return"]


async def test_a_stopped_branch_leaves_no_time_of_its_request() -> None:
    rig = Rig()
    step = GrowthStep(requests=(request(0),))
    tree = rig.tree(start=lambda: step, in_flight={"branch": 1})
    await rig.executor.start([tree])
    assert list(rig.spans._requested_ns) == [request(0).key]
    await rig.executor.cut(tree)
    assert not rig.spans._requested_ns


async def test_what_a_pruned_branch_has_sampled_reaches_its_grower() -> None:
    rig = Rig()
    ended: list[Any] = []
    branches: Any = ("branch",)

    def take(samples: Any) -> GrowthStep:
        ended.extend(samples)
        return GrowthStep()

    rig.engine.cut = [sample(0)]
    await rig.executor.start([rig.tree(start=lambda: GrowthStep(aborts=branches), ended=take)])
    assert ended == rig.engine.cut


async def test_a_tree_that_begins_to_wait_makes_space_for_others() -> None:
    rig = Rig()
    tree = rig.tree(waits=True, start=GrowthStep)
    rig.trees.changed.clear()
    await rig.executor.start([tree])
    assert rig.trees.changed.is_set()


async def test_a_start_and_each_sample_are_progress() -> None:
    rig = Rig()
    tree = rig.tree(start=GrowthStep, ended=lambda samples: GrowthStep())
    for change in (rig.executor.start([tree]), rig.executor.receive([sample(0)])):
        tree.progressed_at = 0.0
        await change
        assert tree.progressed_at > 0.0
