"""Answers to actions: one for each place, from states that may be lost at any time."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.digest import blake
from banyan.environments.endings import Ending
from banyan.environments.observation import Effect, ToolOutcome
from banyan.environments.receipts import Receipt
from banyan.errors import Refused, TemporaryError
from banyan.plugins.environment import Answer
from banyan.programs.run import Outcome
from banyan.programs.session import SessionResult, Task
from services.verifier.environments import actions as module
from services.verifier.environments.actions import Actions
from services.verifier.environments.asked import Caller
from services.verifier.environments.states import States
from tests.verifier.environments.acting import KEY, RUN, TREE, Adder, Store, acted, ended


@pytest.fixture
def adder(monkeypatch: pytest.MonkeyPatch) -> Adder:
    """The one environment of a test."""
    made = Adder()
    monkeypatch.setattr(registry, "environment", lambda *_: made)
    return made


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


async def test_nothing_acts_behind_the_end_of_an_episode(
    adder: Adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    monkeypatch.setattr(adder, "step", lambda state, action: Answer("end", b"5", done=True))
    await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    with pytest.raises(Refused, match="whose answer ended the episode"):
        await acted(Actions(store, KEY), store, store.add(b"b" * 32, b"a" * 32), "2")


async def test_a_repeat_has_the_same_bytes_and_runs_nothing(adder: Adder) -> None:
    store = Store()
    actions = Actions(store, KEY)
    store.add(b"a" * 32)
    at_once = await asyncio.gather(
        *(actions.act(TREE, 1, b"a" * 32, call="2", deadline_s=1.0) for _ in range(5))
    )
    [answer] = {answer for answer in at_once if not isinstance(answer, Ending)}
    assert adder.steps == ["2"] and store.reads == 1
    store.answers[b"a" * 32] = answer
    assert await actions.act(TREE, 1, b"a" * 32, call="9", deadline_s=1.0) == answer
    assert adder.steps == ["2"], "what is stored stands, whatever is asked now"


async def test_a_lost_state_is_made_again_and_must_come_out(adder: Adder) -> None:
    store = Store()
    await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    await acted(Actions(store, KEY), store, store.add(b"b" * 32, b"a" * 32), "2")
    assert adder.steps == ["1", "1", "2"]
    store.add(b"c" * 32, b"b" * 32)
    adder.drift = 1
    ending = await ended(Actions(store, KEY), b"c" * 32, "3")
    assert ending.proves(KEY, RUN, TREE)
    assert (ending.reason, ending.place) == ("ENVIRONMENT_DIVERGED", b"a" * 32)


async def test_another_start_or_answer_is_a_divergence(
    adder: Adder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    store.add(b"b" * 32, b"a" * 32)
    with monkeypatch.context() as patch:
        patch.setattr(adder, "reset", lambda row, seed: b"6")
        await ended(Actions(store, KEY), b"b" * 32, "2")
    assert "found something else" in caplog.text
    monkeypatch.setattr(
        adder, "step", lambda state, action: Answer("other", b"6", effect=Effect.STATE)
    )
    await ended(Actions(store, KEY), b"b" * 32, "2")
    assert "answered something else" in caplog.text


async def test_nothing_acts_below_a_place_that_came_out_otherwise(adder: Adder) -> None:
    store = Store()
    await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    actions = Actions(store, KEY)
    await acted(actions, store, store.add(b"b" * 32, b"a" * 32), "2")  # its state is kept
    adder.drift = 1
    actions._states = States(0)
    assert (await ended(actions, store.add(b"c" * 32, b"b" * 32), "3")).place == b"a" * 32
    adder.drift = 0
    steps = list(adder.steps)
    assert (await ended(actions, store.add(b"d" * 32, b"b" * 32), "4")).place == b"a" * 32
    assert adder.steps == steps, "nothing is run below"
    await acted(actions, store, store.add(b"e" * 32), "5")  # beside it everything goes on
    assert await actions.act(TREE, 1, b"b" * 32, call="", deadline_s=1.0), "what is stored stays"


@pytest.mark.parametrize(
    ("outcome", "seen"),
    [
        (Outcome.SIGNALLED, ToolOutcome.CRASHED),
        (Outcome.WAITED, ToolOutcome.WAITED),
        (Outcome.CPU, ToolOutcome.CPU),
        (Outcome.OUTPUT, ToolOutcome.OUTPUT),
    ],
)
async def test_what_an_action_causes_is_its_answer_and_the_path_goes_on(
    outcome: Outcome, seen: ToolOutcome
) -> None:
    class Sessions:
        async def do(self, task: Task) -> SessionResult:
            ended = Outcome.DONE if task.code == "2" else outcome
            return SessionResult(ended, b"said", b"", b"state")

    store = Store(environment="python")
    actions = Actions(store, KEY, Sessions())
    receipt, text = await acted(actions, store, store.add(b"a" * 32), "<python>1</python>")
    assert receipt.observation.outcome is seen and text.startswith("said")
    _, text = await acted(actions, store, store.add(b"b" * 32, b"a" * 32), "<python>2</python>")
    assert text == "said"


@pytest.mark.parametrize("outcome", [Outcome.CPU, Outcome.WAITED])
async def test_in_a_deterministic_run_a_time_that_is_over_is_no_answer(outcome: Outcome) -> None:
    class Sessions:
        async def do(self, task: Task) -> SessionResult:
            return SessionResult(outcome if task.code == "1" else Outcome.MEMORY, b"said")

    store = Store(environment="python", deterministic=True)
    actions = Actions(store, KEY, Sessions())
    ending = await ended(actions, store.add(b"a" * 32), "<python>1</python>")
    assert ending.proves(KEY, RUN, TREE)
    assert (ending.reason, ending.place) == ("DEADLINE", b"a" * 32)
    receipt, _ = await acted(actions, store, store.add(b"b" * 32), "<python>2</python>")
    assert receipt.observation.outcome is ToolOutcome.MEMORY, "bytes are counted"


async def test_a_runner_that_is_lost_again_and_again_ends_the_path() -> None:
    ends = iter((Outcome.LOST, Outcome.WALL, Outcome.LOST))

    class Away:
        async def do(self, task: Task) -> SessionResult:
            return SessionResult(next(ends), b"", b"", None)

    store = Store(environment="python")
    actions = Actions(store, KEY, Away())
    action = store.add(b"a" * 32)
    for _ in range(2):
        with pytest.raises(TemporaryError, match="a session of environment python ended"):
            await acted(actions, store, action, "<python>1</python>")
    ending = await ended(actions, action, "<python>1</python>")
    assert ending.proves(KEY, RUN, TREE)
    assert (ending.reason, ending.place) == ("INFRASTRUCTURE", action)


async def test_an_episode_that_is_over_answers_no_new_action(adder: Adder) -> None:
    store = Store(episode_s=2.5, episode_ms=2500)
    actions = Actions(store, KEY)
    first = await acted(actions, store, store.add(b"a" * 32), "1")
    store.episode_ms += 1
    ending = await ended(actions, store.add(b"b" * 32, b"a" * 32), "1")
    assert ending.proves(KEY, RUN, TREE)
    assert (ending.reason, ending.place) == ("DEADLINE", b"b" * 32)
    assert await actions.act(TREE, 1, b"a" * 32, call="1", deadline_s=1.0) == first


async def test_an_environment_that_raises_ends_the_path_alone(
    adder: Adder, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    actions = Actions(store, KEY)
    ending = await ended(actions, store.add(b"a" * 32), "no number")
    assert (ending.reason, ending.place) == ("ENVIRONMENT_FAULT", b"a" * 32)
    assert ending.cause.startswith("environment adder: raised ValueError: invalid literal")
    assert ending.cause in caplog.text
    joined = Caller(RUN, "n-1")
    told = await actions.act(TREE, 1, b"a" * 32, call="no number", deadline_s=1.0, caller=joined)
    assert isinstance(told, Ending) and told.proves(KEY, RUN, TREE)
    assert (told.reason, told.cause) == ("ENVIRONMENT_FAULT", ""), "what it quotes stays with us"
    assert (await acted(actions, store, store.add(b"b" * 32), "1"))[1] == "sum 6"


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
    monkeypatch.setattr(adder, "step", lambda state, action: Answer("x" * 10**7, b""))
    receipt, text = await acted(Actions(store, KEY), store, store.add(b"b" * 32), "1")
    assert len(text) == 100 and receipt.observation.answer == blake(b"x" * 2**20)


async def test_a_state_that_is_too_large_is_the_actions_own_doing(
    adder: Adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    actions = Actions(store, KEY)
    with monkeypatch.context() as patch:
        large = Answer("", bytes(70_000), reward=1.0, done=True, effect=Effect.STATE)
        patch.setattr(adder, "step", lambda state, action: large)
        receipt, text = await acted(actions, store, store.add(b"a" * 32), "1")
    seen = receipt.observation
    assert (seen.outcome, seen.reward, seen.done) == (ToolOutcome.MEMORY, 0.0, False)
    assert seen.before == seen.after and "larger than 64 KiB" in text
    _, text = await acted(actions, store, store.add(b"b" * 32, b"a" * 32), "1")
    assert text == "sum 6", "the path goes on from what was before"


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
        patch.setattr(module.registry, "environment", lambda *_: made)
        asyncio.run(grow())


async def test_a_state_that_was_made_again_is_there_for_the_next_branch(adder: Adder) -> None:
    store = Store()
    await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    other = Actions(store, KEY)
    for name in (b"b", b"c"):
        await acted(other, store, store.add(name * 32, b"a" * 32), "2")
    assert adder.steps == ["1", "1", "2", "2"]
