"""Answers in lockstep: the trees go on together, in logical order, once all are in."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import PermanentError, TemporaryError
from banyan.plugins.traits import PolicyTraits
from services.chassis.process.telemetry import Span
from services.rollout.growth.step import Call
from services.rollout.node import acting as module
from services.rollout.node.acting import Acting
from services.rollout.node.active_trees import ActiveTree, ActiveTrees, TreeState
from services.rollout.timeouts import BackgroundTasks


class Rig:
    """Trees that act, and a verifier that answers each action when it is told to."""

    def __init__(self, trees: int) -> None:
        self.trees, self.tasks = ActiveTrees(8, 8), BackgroundTasks()
        self.turns, self.returned = list[list[Any]](), list[int]()
        self.waits: dict[bytes, asyncio.Future[Any]] = {}
        self.asked: list[bytes] = []
        self.error: Exception | None = None
        environments: Any = SimpleNamespace(act=self._verifier)
        self.acting = Acting(environments, self.trees, self.tasks, lockstep=True)
        self.made = [self._tree(number) for number in range(trees)]

    def _tree(self, number: int) -> ActiveTree:
        spec: Any = SimpleNamespace(tree_id=bytes([number]) * 32, traits=PolicyTraits())
        grower: Any = SimpleNamespace(answered=lambda action, answer: (number, action, answer))
        nothing: Any = None
        tree = ActiveTree(spec=spec, grower=grower, epoch=1, delivery=nothing, span=Span())
        self.trees.put(tree)
        tree.enter(TreeState.GROWING)
        return tree

    async def _verifier(self, tree: bytes, epoch: int, action: bytes, **named: Any) -> Any:
        self.asked.append(action)
        self.waits[action] = asyncio.get_running_loop().create_future()
        return await self.waits[action]

    async def act_all(self, changes: Any, is_turn: bool = False) -> None:
        assert is_turn
        if self.error is not None:
            raise self.error
        self.turns.append([change() for _, change in changes])

    def give_up(self, tree: ActiveTree, reason: str) -> None:
        if not tree.is_finishing:
            tree.enter(TreeState.FINISHING)
            self.returned.append(self.made.index(tree))

    def begin(self, *calls: tuple[int, bytes, tuple[int, ...]]) -> None:
        asked = [(self.made[tree], Call(action, "", order)) for tree, action, order in calls]
        self.acting.begin(asked, self)

    async def settled(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


async def test_answers_wait_for_each_other_and_come_in_logical_order() -> None:
    rig = Rig(2)
    rig.begin((1, b"d", (1, 0)), (0, b"c", (0, 1)), (0, b"a", (0, 0, 2)))
    await rig.settled()
    for left, action in ((2, b"d"), (1, b"c")):
        rig.waits[action].set_result(action)
        await rig.settled()
        assert rig.acting.open == left and not rig.turns
    rig.waits[b"a"].set_result(b"a")
    await rig.settled()
    assert rig.turns == [[(0, b"a", b"a"), (0, b"c", b"c"), (1, b"d", b"d")]]
    rig.begin((1, b"e", (1, 0)))
    await rig.settled()
    rig.waits[b"e"].set_result(b"e")
    await rig.settled()
    assert rig.turns[1:] == [[(1, b"e", b"e")]], "none is handed over twice"


async def test_an_answer_that_will_not_come_holds_up_no_other() -> None:
    rig = Rig(2)
    rig.begin((0, b"a", (0,)), (1, b"b", (1,)))
    await rig.settled()
    rig.waits[b"b"].set_result(b"b")
    rig.waits[b"a"].set_exception(PermanentError("never"))
    await rig.settled()
    assert rig.returned == [0] and rig.turns == [[(1, b"b", b"b")]]
    rig.begin((1, b"c", (1,)))
    await rig.settled()
    rig.waits[b"c"].set_exception(ZeroDivisionError())
    await rig.settled()
    assert rig.returned == [0, 1] and rig.turns[1:] == [[]], "the engine gets its turn"


async def test_while_one_is_asked_again_all_trees_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    rig = Rig(2)
    rig.begin((0, b"a", (0,)))
    await rig.settled()
    rig.made[1].progressed_at = 0.0
    rig.waits[b"a"].set_exception(TemporaryError("the verifier is away"))
    async with asyncio.timeout(5):
        while len(rig.asked) < 2:
            await asyncio.sleep(0)
    assert rig.made[1].progressed_at > 0 and not rig.turns


async def test_answers_that_cannot_be_handed_over_return_their_trees() -> None:
    rig = Rig(3)
    rig.begin((2, b"a", (0,)), (0, b"b", (1,)))
    await rig.settled()
    rig.error = RuntimeError("the log takes nothing")
    for action in (b"a", b"b"):
        rig.waits[action].set_result(action)
    await rig.settled()
    assert rig.returned == [2, 0]
