"""Answers with half characters, which a model can make a tool echo: they are sent all the same."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from banyan import registry
from banyan.digest import blake
from banyan.environments.hosting import HostedResult, HostedTask
from banyan.environments.observation import Effect
from banyan.plugins.environment import Answer
from banyan.v1 import verifier_service_pb2 as pb
from banyan.wire.receipts import from_wire
from services.verifier.environments.actions import Actions
from services.verifier.environments.ports import Begin
from services.verifier.server import VerifierServer
from tests.verifier.environments.test_actions import KEY, RUN, TREE, Adder, Store, acted
from tests.verifier.environments.test_effects import A, B, Effects, Mail, Outside
from tests.verifier.environments.test_effects import actions as outside_of

UNUSED: Any = None
CONTEXT = SimpleNamespace(invocation_metadata=lambda: ())


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of paths in an environment that repeats what was said, with a half character."""

    class Echo(Adder):
        def step(self, state: bytes, action: str) -> Answer:
            return Answer(f"{action} \ud800", state + b"1", effect=Effect.STATE)

    made = Echo()
    monkeypatch.setattr(registry, "environment", lambda *_: made)
    return Store()


class Odd(Outside):
    """A runner whose tool answers with a half character."""

    async def do(self, task: HostedTask, begin: Begin | None = None) -> HostedResult:
        return replace(await super().do(task, begin), text="sent \ud800")


def request(action: bytes) -> pb.ActRequest:
    return pb.ActRequest(tree_id=TREE, epoch=1, action=action, call="a", deadline_ms=1000)


async def test_an_answer_has_characters_that_a_message_can_carry(store: Store) -> None:
    server = VerifierServer(UNUSED, 1, Actions(store, KEY), UNUSED)
    answer = await server.Act(request(store.add(A)), CONTEXT)
    assert answer.text == "a �"
    receipt = from_wire(answer.receipt)
    assert receipt.proves(KEY, RUN, TREE, A)
    assert receipt.observation.shown == blake(answer.text.encode())


async def test_a_path_with_such_an_answer_is_made_again(store: Store) -> None:
    await acted(Actions(store, KEY), store, store.add(A), "a")
    assert (await acted(Actions(store, KEY), store, store.add(B, A), "b"))[1] == "b �"


async def test_such_an_answer_to_an_effect_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    effects = Effects()
    monkeypatch.setattr(registry, "environment", lambda *_: Mail())
    outside = Odd(effects)
    found = await acted(outside_of(effects, outside), effects, effects.add(A), "send")
    assert found[1] == "sent �" and effects.kept[A] == found
