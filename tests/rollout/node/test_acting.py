"""Actions under way: asked until answered, and never for a tree that is not here any more."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import BanyanError, InvalidInput, PermanentError, Refused, TemporaryError
from banyan.plugins.traits import PolicyTraits
from banyan.reasons import Reason
from services.chassis.process.telemetry import Span
from services.rollout.growth.step import Call
from services.rollout.node import acting as module
from services.rollout.node.acting import Acting
from services.rollout.node.active_trees import ActiveTree, ActiveTrees, TreeState
from services.rollout.timeouts import BackgroundTasks

CALL = Call(b"a" * 32, "=6*7?")
ANSWER: Any = object()


class Rig:
    """A tree that acts, an executor and a verifier that keep notes."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[Any]()
        self.answered, self.returned = list[Any](), list[str]()
        self.trees, self.tasks = ActiveTrees(8, 8), BackgroundTasks()
        spec: Any = SimpleNamespace(tree_id=b"t" * 32, traits=PolicyTraits())
        grower: Any = SimpleNamespace(answered=lambda action, answer: (action, answer))
        nothing: Any = None
        self.tree = ActiveTree(spec=spec, grower=grower, epoch=3, delivery=nothing, span=Span())
        self.trees.put(self.tree)
        self.tree.enter(TreeState.GROWING)
        self.before: Callable[[], object] = lambda: None

    async def _verifier(self, *asked: Any, **named: Any) -> Any:
        self.asked.append((*asked, named["call"]))
        self.before()
        answer = self.answers.pop(0)
        if isinstance(answer, BanyanError):
            raise answer
        return answer

    async def act(self, tree: ActiveTree, change: Any) -> None:
        self.answered.append(change())

    def give_up(self, tree: ActiveTree, reason: str) -> None:
        tree.enter(TreeState.FINISHING)
        self.returned.append(reason)

    async def run(self, monkeypatch: pytest.MonkeyPatch, reachable: bool = True) -> None:
        monkeypatch.setattr(module, "_PAUSE_S", 0.0)
        environments: Any = SimpleNamespace(act=self._verifier) if reachable else None
        Acting(environments, self.trees, self.tasks).begin(self.tree, CALL, self)
        async with asyncio.timeout(5):
            while self.tasks._tasks:
                await asyncio.sleep(0)


async def test_an_answer_reaches_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(ANSWER)
    rig.tree.progressed_at = 0.0
    await rig.run(monkeypatch)
    assert rig.asked == [(b"t" * 32, 3, CALL.action, CALL.text)]
    assert rig.answered == [(CALL.action, ANSWER)] and rig.tree.progressed_at > 0


async def test_what_fails_for_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(TemporaryError("away"), TemporaryError("not stored yet"), ANSWER)
    await rig.run(monkeypatch)
    assert len(rig.asked) == 3 and rig.answered and not rig.returned


async def test_a_runner_that_is_lost_again_and_again_is_left_to_another_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = TemporaryError("a session ended LOST", reason=Reason.CHILD_DIED)
    rig = Rig(lost, TemporaryError("away"), lost, lost)
    await rig.run(monkeypatch)
    assert len(rig.asked) == 4 and len(rig.returned) == 1
    assert rig.returned[0].startswith("UNABLE: ")


@pytest.mark.parametrize("reason", [Reason.STALE_EPOCH, Reason.NOT_GROWING])
async def test_a_lost_tree_is_left_to_its_renewal(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    rig = Rig(Refused("lost", reason))
    await rig.run(monkeypatch)
    assert len(rig.asked) == 1 and not rig.answered and not rig.returned


@pytest.mark.parametrize(
    "error",
    [
        Refused("came out otherwise", Reason.ENVIRONMENT_DIVERGED),
        InvalidInput("no such environment"),
        PermanentError("never"),
    ],
)
async def test_what_can_never_be_answered_ends_the_tree_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, error: BanyanError
) -> None:
    rig = Rig(error)
    await rig.run(monkeypatch)
    assert not rig.answered and len(rig.returned) == 1
    assert rig.returned[0].startswith("UNUSABLE: ") and str(error) in rig.returned[0]


async def test_a_tree_that_went_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(TemporaryError("away"), ANSWER)
    rig.before = lambda: rig.trees.remove(rig.tree)
    await rig.run(monkeypatch)
    assert len(rig.asked) == 1 and not rig.answered


async def test_a_node_that_reaches_no_verifier_returns_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    await rig.run(monkeypatch, reachable=False)
    assert rig.returned == ["UNABLE: this node reaches no verifier, which answers actions"]
