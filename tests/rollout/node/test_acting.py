"""Actions under way: asked until answered, and never for a tree that is not here any more."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.environments.endings import Ending
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
        self.answered, self.returned, self.rounds = list[Any](), list[str](), list[int]()
        self.trees, self.tasks = ActiveTrees(8, 8), BackgroundTasks()
        spec: Any = SimpleNamespace(tree_id=b"t" * 32, traits=PolicyTraits())
        grower: Any = SimpleNamespace(
            answered=lambda action, answer: (action, answer),
            unanswered=lambda action, ending: (action, "ends", ending),
        )
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

    async def act_all(self, changes: Any, is_turn: bool = False) -> None:
        self.rounds.append(len(changes))
        self.answered += [change() for _, change in changes]
        await asyncio.sleep(0)  # as one that publishes: other answers come meanwhile

    def give_up(self, tree: ActiveTree, reason: str) -> None:
        tree.enter(TreeState.FINISHING)
        self.returned.append(reason)

    async def run(
        self,
        monkeypatch: pytest.MonkeyPatch,
        reachable: bool = True,
        times: int = 1,
        pause_s: float = 0.0,
    ) -> None:
        monkeypatch.setattr(module, "_PAUSE_S", pause_s)
        environments: Any = SimpleNamespace(act=self._verifier) if reachable else None
        acting = Acting(environments, self.trees, self.tasks)
        acting.begin([(self.tree, CALL)] * times, self)
        async with asyncio.timeout(5):
            while self.tasks._tasks:
                await asyncio.sleep(0)


async def test_an_answer_reaches_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(ANSWER)
    rig.tree.progressed_at = 0.0
    await rig.run(monkeypatch)
    assert rig.asked == [(b"t" * 32, 3, CALL.action, CALL.text)]
    assert rig.answered == [(CALL.action, ANSWER)] and rig.tree.progressed_at > 0


async def test_an_answer_is_progress_however_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(ANSWER)
    rig.before = lambda: setattr(rig.tree, "progressed_at", 0.0)
    await rig.run(monkeypatch)
    assert rig.tree.progressed_at > 0


async def test_a_tree_that_waits_for_an_answer_makes_space_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(ANSWER)
    rig.trees.changed.clear()
    await rig.run(monkeypatch)
    assert rig.trees.changed.is_set()


async def test_answers_that_come_during_a_step_go_on_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(*[ANSWER] * 5)
    await rig.run(monkeypatch, times=5)
    assert len(rig.answered) == 5 and rig.rounds == [1, 4]


async def test_an_action_that_gets_no_answer_ends_its_path_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending = Ending(CALL.action, Reason.ENVIRONMENT_DIVERGED, "otherwise", b"proof")
    rig = Rig(ending)
    await rig.run(monkeypatch)
    assert rig.answered == [(CALL.action, "ends", ending)] and not rig.returned


async def test_what_fails_for_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(TemporaryError("away"), TemporaryError("not stored yet"), ANSWER)
    await rig.run(monkeypatch)
    assert len(rig.asked) == 3 and rig.answered and not rig.returned


async def test_pauses_between_attempts_double_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, pauses, sleep = Rig(*[TemporaryError("away")] * 5, ANSWER), list[float](), asyncio.sleep

    async def noted(pause_s: float) -> None:
        pauses.extend([pause_s] if pause_s else [])
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 7.0)
    await rig.run(monkeypatch, pause_s=1.0)
    assert pauses == [1.0, 2.0, 4.0, 7.0, 7.0]


async def test_a_runner_that_is_lost_again_and_again_is_left_to_another_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = TemporaryError("a session ended LOST", reason=Reason.CHILD_DIED)
    rig = Rig(lost, TemporaryError("away"), *[lost] * 15)
    await rig.run(monkeypatch)
    assert len(rig.asked) == 17 and len(rig.returned) == 1
    assert rig.returned[0].startswith("UNABLE: ")


@pytest.mark.parametrize("reason", [Reason.STALE_EPOCH, Reason.NOT_GROWING, Reason.NOT_ITS_CLAIM])
async def test_a_lost_tree_is_left_to_its_renewal(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    rig = Rig(Refused("lost", reason))
    await rig.run(monkeypatch)
    assert len(rig.asked) == 1 and not rig.answered and not rig.returned


@pytest.mark.parametrize(
    "error",
    [
        Refused("a rule forbids it"),
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


@pytest.mark.parametrize("went", [True, False])
async def test_a_tree_that_went_or_is_finishing_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, went: bool
) -> None:
    rig = Rig(TemporaryError("away"), ANSWER)
    if went:
        rig.before = lambda: rig.trees.remove(rig.tree)
    else:
        rig.before = lambda: rig.tree.enter(TreeState.FINISHING)
    await rig.run(monkeypatch)
    assert len(rig.asked) == 1 and not rig.answered


async def test_a_node_that_reaches_no_verifier_returns_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    await rig.run(monkeypatch, reachable=False)
    assert rig.returned == ["UNABLE: this node reaches no verifier, which answers actions"]
