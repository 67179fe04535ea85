"""Effects outside, as the verifier has them: begun once, durably, and never again."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from banyan import registry
from banyan.environments.external import idempotency_key
from banyan.environments.hosting import HostedResult, HostedTask, Hosting, Intent
from banyan.environments.observation import Effect, ToolOutcome
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.plugins.environment import Answer
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.receipts import from_wire
from services.verifier.environments.actions import Actions
from services.verifier.environments.asked import Caller
from services.verifier.environments.ports import Begin
from services.verifier.environments.runner import Runner
from services.verifier.environments.stepping import Stepper
from services.verifier.environments.unanswerable import Unanswerable
from tests.verifier.environments.test_actions import KEY, RUN, TREE, Store, acted, ended

A, B = b"a" * 32, b"b" * 32
TASK = HostedTask("mail", {}, Hosting(end="."), {}, 0)


@dataclass
class Mail:
    """An environment whose tools note words: "put" in its state, "send" outside."""

    name: str = "mail"
    version: str = "1"
    end: str = "."

    def reset(self, row: Any, seed: int) -> bytes:
        return b"0"

    def turn(self, state: bytes, action: str) -> Generator[HostedTask | Intent, Any, Answer]:
        if action.startswith("put"):
            result: HostedResult = yield replace(TASK, action=action)
            return Answer(result.text, state + b"1", effect=Effect.STATE)
        result = yield Intent("send", replace(TASK, action=action))
        return Answer(result.text, state, outcome=result.outcome, effect=Effect.EXTERNAL)


@dataclass
class Effects(Store):
    """The store, with effects that were begun and their answers."""

    begun: dict[bytes, str] = field(default_factory=dict)
    kept: dict[bytes, tuple[Receipt, str]] = field(default_factory=dict)
    away: bool = False
    stale: bool = False

    async def read_action(
        self, tree_id: bytes, epoch: int, action: bytes, deadline_s: float, caller: Caller
    ) -> ts.ActionWay:
        self.answers = {**self.kept, **self.answers}
        way = await super().read_action(tree_id, epoch, action, deadline_s, caller)
        way.effect_begun = action in self.begun
        return way

    async def begin_effect(self, tree_id: bytes, epoch: int, action: bytes, tool: str) -> bool:
        if self.stale:
            raise Refused("an older claim")
        if action in self.begun:
            return False
        self.begun[action] = tool
        return True

    async def end_effect(
        self, tree_id: bytes, action: bytes, receipt: tree_pb2.Receipt, text: str
    ) -> None:
        if self.away:
            raise TemporaryError("away")
        self.kept.setdefault(action, (from_wire(receipt), text))


@dataclass
class Outside:
    """A runner of steps that notes what was done outside, and what the store knew of it then."""

    store: Effects
    sent: list[tuple[str, str]] = field(default_factory=list)
    fails: Exception | None = None
    unready: Exception | None = None
    outcome: ToolOutcome = ToolOutcome.OK
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def do(self, task: HostedTask, begin: Begin | None = None) -> HostedResult:
        if begin is None:
            return HostedResult(ToolOutcome.OK, f"did {task.action}")
        if self.unready is not None:
            raise self.unready
        key = await begin()
        assert list(self.store.begun.values())[-1] == "send", "it is durable before the call"
        self.sent.append((key, str(task.action)))
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return HostedResult(self.outcome, f"sent {task.action}")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Effects:
    monkeypatch.setattr(registry, "environment", lambda *_: Mail())
    return Effects()


def actions(store: Effects, outside: Outside) -> Actions:
    return Actions(store, KEY, hosts=outside)


async def test_a_call_is_begun_first_and_its_answer_is_kept(store: Effects) -> None:
    outside = Outside(store)
    receipt, text = await acted(actions(store, outside), store, store.add(A), "send x")
    assert text == "sent send x" and outside.sent == [(idempotency_key(TREE, A), "send x")]
    seen = receipt.observation
    assert seen.effect is Effect.EXTERNAL and seen.before == seen.after
    assert receipt.proves(KEY, RUN, TREE, A) and store.kept[A] == (receipt, text)
    assert idempotency_key(TREE, A) != idempotency_key(TREE, B) != idempotency_key(A, B)


async def test_nothing_is_called_for_an_action_that_is_not_stored(store: Effects) -> None:
    outside = Outside(store)
    with pytest.raises(TemporaryError, match="is not stored yet"):
        await actions(store, outside).act(TREE, 1, A, call="send x", deadline_s=0.0)
    assert not outside.sent and not store.begun


async def test_nothing_is_called_under_an_older_claim(store: Effects) -> None:
    outside, store.stale = Outside(store), True
    with pytest.raises(Refused, match="an older claim"):
        await actions(store, outside).act(TREE, 1, store.add(A), call="send x", deadline_s=1.0)
    assert not outside.sent


async def test_an_effect_that_was_begun_is_never_begun_again(store: Effects) -> None:
    outside = Outside(store)
    store.begun[store.add(A)] = "send"
    for made in (actions(store, outside), actions(store, outside)):
        ending = await ended(made, A, "send x")
        assert ending.proves(KEY, RUN, TREE)
        assert (ending.reason, ending.place) == ("EFFECT_UNKNOWN", A)
    assert (await ended(actions(store, outside), A, "put x")).reason == "EFFECT_UNKNOWN", (
        "whatever the tool would say now"
    )
    assert not outside.sent
    _, text = await acted(actions(store, outside), store, store.add(B), "send y")
    assert text == "sent send y", "other paths go on"


async def test_of_two_verifiers_one_begins(store: Effects) -> None:
    """Both read the action before either begins."""
    outside, other = Outside(store), Outside(store)
    outside.gate.clear()
    store.add(A)
    first = asyncio.create_task(
        actions(store, outside).act(TREE, 1, A, call="send x", deadline_s=1.0)
    )
    async with asyncio.timeout(5):
        while not outside.sent:
            await asyncio.sleep(0)
    ending = await ended(actions(store, other), A, "send x")
    assert ending.reason == "EFFECT_UNKNOWN" and not other.sent
    outside.gate.set()
    assert await first == store.kept[A]


@pytest.mark.parametrize("fault", [TemporaryError("lost"), InvalidInput("no form")])
async def test_a_call_whose_runner_is_lost_is_not_made_again(
    store: Effects, fault: Exception
) -> None:
    outside = Outside(store, fails=fault)
    made = actions(store, outside)
    store.add(A)
    for _ in range(3):
        assert (await ended(made, A, "send x")).reason == "EFFECT_UNKNOWN"
    assert len(outside.sent) == 1 and not store.kept


async def test_a_runner_that_is_lost_before_the_call_leaves_it_to_another(store: Effects) -> None:
    outside = Outside(store, unready=TemporaryError("no child"))
    made = actions(store, outside)
    with pytest.raises(TemporaryError, match="no child"):
        await made.act(TREE, 1, store.add(A), call="send x", deadline_s=1.0)
    assert not store.begun
    outside.unready = None
    assert (await acted(made, store, A, "send x"))[1] == "sent send x"


async def test_an_answer_stands_though_the_node_that_asked_is_gone(store: Effects) -> None:
    """It comes from the store, byte by byte, in another verifier."""
    outside = Outside(store)
    first = await actions(store, outside).act(TREE, 1, store.add(A), call="send x", deadline_s=1.0)
    again = await actions(store, outside).act(TREE, 2, A, call="send x", deadline_s=1.0)
    assert again == first and len(outside.sent) == 1


async def test_an_answer_is_given_though_the_store_cannot_keep_it(store: Effects) -> None:
    outside, store.away = Outside(store), True
    made = actions(store, outside)
    _, text = await acted(made, store, store.add(A), "send x")
    assert text == "sent send x"
    store.answers.clear()  # the node died before it published it
    assert (await acted(made, store, A, "send x"))[1] == text, "its verifier knows it"
    store.answers.clear()
    assert (await ended(actions(store, outside), A, "send x")).reason == "EFFECT_UNKNOWN"
    assert len(outside.sent) == 1


async def test_what_a_tool_raises_is_its_answer(store: Effects) -> None:
    outside = Outside(store, outcome=ToolOutcome.FAILED)
    receipt, _ = await acted(actions(store, outside), store, store.add(A), "send x")
    assert receipt.observation.outcome is ToolOutcome.FAILED
    assert receipt.observation.effect is Effect.EXTERNAL and A in store.kept


async def test_a_path_that_is_made_again_calls_nothing_outside(store: Effects) -> None:
    outside = Outside(store)
    await acted(actions(store, outside), store, store.add(A), "put x")
    await acted(actions(store, outside), store, store.add(B, A), "send x")
    third = store.add(b"c" * 32, B)
    receipt, _ = await acted(actions(store, outside), store, third, "put y")
    assert len(outside.sent) == 1 and receipt.observation.outcome is ToolOutcome.OK


async def test_a_step_that_acts_outside_only_now_has_diverged(
    store: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Outside(store)
    await acted(actions(store, outside), store, store.add(A), "put x")
    receipt, text = store.answers[A]
    store.answers[A] = (replace(receipt, call="send x"), text)
    ending = await ended(actions(store, outside), store.add(B, A), "put y")
    assert (ending.reason, ending.place) == ("ENVIRONMENT_DIVERGED", A) and not outside.sent


async def test_a_step_by_hand_changes_nothing_outside(store: Effects) -> None:
    """An opened environment has no action in the store."""
    outside = Outside(store)
    stepper = Stepper(Runner(None, outside))
    with pytest.raises(Unanswerable, match="tool send of environment mail changes something out"):
        await stepper.step(Mail(), b"0", "send x", b"")
    assert (await stepper.step(Mail(), b"0", "put x", b"")).text == "did put x"
    assert not outside.sent and not store.begun
