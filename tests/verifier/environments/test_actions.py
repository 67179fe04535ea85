"""Answers to actions: one for each place, from states that may be lost at any time."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.observation import Effect
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.plugins.environment import Answer
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from banyan.wire.receipts import to_wire
from services.verifier.environments import actions as module
from services.verifier.environments.actions import Actions
from services.verifier.environments.cut import cut
from services.verifier.environments.states import States

TREE, RUN, KEY = b"t" * 32, "run", receipts.key_of("secret")


@dataclass
class Adder:
    """An environment with a state: the sum of what was said, with the row's start."""

    name: str = "adder"
    version: str = "1"
    end: str = "."
    steps: list[str] = field(default_factory=list)
    drift: int = 0

    def reset(self, row: Any, seed: int) -> bytes:
        return str(row["start"]).encode()

    def step(self, state: bytes, action: str) -> Answer:
        self.steps.append(action)
        total = int(state) + int(action) + self.drift
        return Answer(f"sum {total}", str(total).encode(), effect=Effect.STATE)


@dataclass
class Store:
    """The recorded path of each action."""

    environment: str = f"{__name__}:Adder"
    answer_chars: int = 2000
    parents: dict[bytes, bytes] = field(default_factory=dict)
    answers: dict[bytes, tuple[Receipt, str]] = field(default_factory=dict)
    reads: int = 0

    def add(self, action: bytes, parent: bytes = b"") -> bytes:
        self.parents[action] = parent
        return action

    async def read_action(
        self, tree_id: bytes, epoch: int, action: bytes, deadline_s: float
    ) -> ts.ReadActionResponse:
        self.reads += 1
        if action not in self.parents:
            return ts.ReadActionResponse()
        path, at = [], action
        while at:
            path.append(at)
            at = self.parents[at]
        spec = EnvironmentSpec(name=self.environment, answer_chars=self.answer_chars)
        generate = GenerateSpec(name="iid", max_new_tokens=8, environment=spec)
        return ts.ReadActionResponse(
            run_id=RUN,
            row_json=json.dumps({"start": 5}),
            generate_json=generate.to_json(),
            turns=[self._turn(one) for one in reversed(path)],
        )

    def _turn(self, action: bytes) -> ts.Turn:
        if action not in self.answers:
            return ts.Turn(action=action)
        receipt, text = self.answers[action]
        return ts.Turn(action=action, receipt=to_wire(receipt), answer=text)


@pytest.fixture
def adder(monkeypatch: pytest.MonkeyPatch) -> Adder:
    """The one environment of a test."""
    made = Adder()
    monkeypatch.setattr(registry, "environment", lambda name, settings: made)
    return made


async def acted(actions: Actions, store: Store, action: bytes, call: str) -> tuple[Receipt, str]:
    """Answer an action and record the answer, as a node does."""
    found = await actions.act(TREE, 1, action, call=call, deadline_s=1.0)
    store.answers[action] = found
    return found


async def test_an_answer_follows_from_the_path_and_is_proven(adder: Adder) -> None:
    store = Store()
    actions = Actions(store, KEY)
    receipt, text = await acted(actions, store, store.add(b"a" * 32), "2")
    assert text == "sum 7" and receipt.proves(KEY, RUN, TREE, b"a" * 32)
    assert receipt.observation.shown == receipt.observation.answer == blake(b"sum 7")
    assert receipt.observation.before == blake(b"5") and receipt.observation.after == blake(b"7")
    _, text = await acted(actions, store, store.add(b"b" * 32, b"a" * 32), "10")
    assert text == "sum 17" and adder.steps == ["2", "10"]


async def test_branches_behind_one_place_do_not_see_each_other(adder: Adder) -> None:
    store = Store()
    actions = Actions(store, KEY)
    await acted(actions, store, store.add(b"a" * 32), "1")
    texts = [
        (await acted(actions, store, store.add(bytes([n]) * 32, b"a" * 32), str(n)))[1]
        for n in (10, 20, 30)
    ]
    assert texts == ["sum 16", "sum 26", "sum 36"]


async def test_a_repeat_has_the_same_bytes_and_runs_nothing(adder: Adder) -> None:
    store = Store()
    actions = Actions(store, KEY)
    store.add(b"a" * 32)
    at_once = await asyncio.gather(
        *(actions.act(TREE, 1, b"a" * 32, call="2", deadline_s=1.0) for _ in range(5))
    )
    assert len({(receipt.mac, text) for receipt, text in at_once}) == 1
    assert adder.steps == ["2"] and store.reads == 1
    store.answers[b"a" * 32] = at_once[0]
    assert await actions.act(TREE, 1, b"a" * 32, call="9", deadline_s=1.0) == at_once[0]
    assert adder.steps == ["2"], "what is stored stands, whatever is asked now"


async def test_a_lost_state_is_made_again_and_must_come_out(adder: Adder) -> None:
    store = Store()
    await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    await acted(Actions(store, KEY), store, store.add(b"b" * 32, b"a" * 32), "2")
    assert adder.steps == ["1", "1", "2"]
    store.add(b"c" * 32, b"b" * 32)
    adder.drift = 1
    with pytest.raises(Refused, match="left something else") as refused:
        await acted(Actions(store, KEY), store, b"c" * 32, "3")
    assert refused.value.reason == "ENVIRONMENT_DIVERGED"


async def test_another_start_or_answer_is_a_divergence(
    adder: Adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    store.add(b"b" * 32, b"a" * 32)
    with monkeypatch.context() as patch:
        patch.setattr(adder, "reset", lambda row, seed: b"6")
        with pytest.raises(Refused, match="found something else"):
            await acted(Actions(store, KEY), store, b"b" * 32, "2")
    monkeypatch.setattr(
        adder, "step", lambda state, action: Answer("other", b"6", effect=Effect.STATE)
    )
    with pytest.raises(Refused, match="answered something else"):
        await acted(Actions(store, KEY), store, b"b" * 32, "2")


async def test_a_step_that_changed_nothing_is_not_run_again() -> None:
    store = Store(environment="calculator")
    call = "<calc>2 * 3</calc>"
    receipt, text = await acted(Actions(store, KEY), store, store.add(b"a" * 32), call)
    assert text == "6" and receipt.observation.effect is Effect.NONE and receipt.call == call
    store.answers[b"a" * 32] = (Receipt(receipt.observation, receipt.mac, "unreadable"), "6")
    _, text = await acted(Actions(store, KEY), store, store.add(b"b" * 32, b"a" * 32), call)
    assert text == "6"


async def test_an_action_that_is_not_stored_yet_is_asked_for_again(adder: Adder) -> None:
    store = Store()
    actions = Actions(store, KEY)
    with pytest.raises(TemporaryError, match="is not stored yet"):
        await actions.act(TREE, 1, b"a" * 32, call="1", deadline_s=0.0)
    assert (await acted(actions, store, store.add(b"a" * 32), "1"))[1] == "sum 6"


async def test_a_long_answer_is_cut_and_says_so(
    adder: Adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adder, "step", lambda state, action: Answer("x" * 10**6, b""))
    store = Store(answer_chars=100)
    receipt, text = await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    assert len(text) == 100 and "[…]" in text
    assert receipt.observation.cut and receipt.observation.answer == blake(b"x" * 10**6)


async def test_a_state_that_is_too_large_is_an_error(
    adder: Adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adder, "step", lambda state, action: Answer("", bytes(70_000)))
    store = Store()
    with pytest.raises(InvalidInput, match="a state of 70000 bytes"):
        await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 25))
def test_any_tree_has_the_answers_of_its_paths(seed: int, size: int) -> None:
    """States are lost at random; each answer is that of its path run alone."""
    rng = random.Random(seed)
    made, store = Adder(), Store()

    async def grow() -> None:
        actions, sums = Actions(store, KEY), {b"": 5}
        for number in range(size):
            parent = rng.choice([b"", *store.answers])
            action = store.add(blake(bytes([number])), parent)
            sums[action] = sums[parent] + number
            if rng.random() < 0.3:
                actions = Actions(store, KEY)
            _, text = await acted(actions, store, action, str(number))
            assert text == f"sum {sums[action]}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.registry, "environment", lambda name, settings: made)
        asyncio.run(grow())


@given(st.text(max_size=60), st.integers(0, 60))
def test_a_cut_keeps_both_ends_and_its_length(text: str, most: int) -> None:
    short = cut(text, most)
    assert len(short) <= most or short == text
    assert (short == text) == (len(text) <= most)
    kept = (most - len("\n[…]\n")) // 2
    if len(text) > most and kept > 0:
        assert short.startswith(text[:kept]) and short.endswith(text[-kept:])


def test_states_beyond_their_bytes_are_lost_oldest_use_first() -> None:
    states = States(most=3 * 300)
    for name in (b"a", b"b", b"c"):
        states.put(name, bytes(100))
    assert states.get(b"a") is not None
    states.put(b"d", bytes(100))
    assert states.get(b"b") is None and states.get(b"a") is not None
    states.put(b"e", bytes(10_000))
    assert states.get(b"e") is not None and states.get(b"a") is None
