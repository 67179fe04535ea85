"""One step of a user's class, without a child: its draws, its end, its reward and its anchor."""

import base64
import json
import random
from typing import Any

import pytest

from banyan.digest import canonical
from banyan.environments.hosted import Hosted
from banyan.environments.hosting import HostedResult, Hosting
from banyan.environments.observation import Effect, ToolOutcome
from banyan.environments.observed import text_digest
from banyan.errors import InvalidInput
from banyan.plugins.environment import Answer
from banyan.plugins.filter import MOST_REWARD
from services.verifier.hosted.user_class import UserEnvironment


class Said:
    """Returns what it was made with, and a draw of no generator of its own."""

    def __init__(self, *returned: Any, anchor: str = "") -> None:
        self.returned, self.anchor = returned, anchor

    def reset(self, row: Any) -> None:
        pass

    def step(self, action: str) -> tuple[Any, ...]:
        return (str(random.random()), *self.returned)


def did(
    environment: Said, seed: int = 1, past: Any = (), snapshot: str | None = None, turn: int = -1
) -> dict[str, Any]:
    turn = len(past) if turn < 0 else turn
    how = {"past": past, "snapshot": snapshot, "turn": turn}
    return UserEnvironment(environment, "m:Said").did(
        {"row": {}, "seed": seed, **how, "action": "go"}
    )


def test_the_seed_decides_draws_of_the_module_random() -> None:
    once, again, other = (did(Said(0.0, False), seed)["text"] for seed in (1, 1, 2))
    assert once == again != other


class Kept(Said):
    """A class with snapshots, which may be all alike."""

    def restore(self, taken: bytes) -> None:
        pass


def test_each_turn_has_draws_of_its_own_with_snapshots_and_without() -> None:
    """They are keyed by tree seed and turn: neither by what is drawn before nor by the state."""
    said, plain = Said(0.0, False), list[str]()
    past: list[tuple[str, str]] = []
    for turn in range(4):
        text = did(said, past=past)["text"]
        past = [*past, (f"do {turn}", text_digest(text).hex())]
        plain.append(text)
    assert len(set(plain)) == 4
    for taken in (b"one", b"two"):
        snapshot = base64.b64encode(taken).decode()
        kept = [did(Kept(0.0, False), snapshot=snapshot, turn=turn)["text"] for turn in range(4)]
        assert kept == plain


def test_states_count_their_turns() -> None:
    environment, turns = Hosted("m:Said", {}, Hosting(end=".")), list[int]()
    for given in (b"same", None):
        state = environment.reset({}, 1)
        for _ in range(3):
            step = environment.turn(state, "go.")
            turns.append(next(step).turn)  # type: ignore[union-attr]
            with pytest.raises(StopIteration) as end:
                step.send(HostedResult(ToolOutcome.OK, text="seen", snapshot=given))
            state = end.value.value.state
    assert turns == [0, 1, 2] * 2


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("cut_off", [False, True])
def test_of_gymnasiums_two_ends_each_is_one(ended: bool, cut_off: bool) -> None:
    assert did(Said(0.0, ended, cut_off, {}))["done"] == (ended or cut_off)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_reward_lies_within_bounds(sign: int) -> None:
    assert did(Said(sign * MOST_REWARD, False))["reward"] == sign * MOST_REWARD
    assert "not within ±1e+100" in did(Said(sign * 2 * MOST_REWARD, False))["fault"]


def test_long_anchors_that_begin_alike_are_two_states() -> None:
    short, long, longer = ("x" * 256, "x" * 257, "x" * 258)
    anchors = [bytes.fromhex(did(Said(0.0, False, anchor=a))["anchor"]) for a in (short, long)]
    assert anchors[0] == short.encode() and len(anchors[1]) <= 256
    assert did(Said(0.0, False, anchor=longer))["anchor"] != anchors[1].hex()


@pytest.mark.parametrize("said", [None, 1, "yes", lambda: True])
def test_only_true_says_that_a_class_is_deterministic(said: Any) -> None:
    environment: Any = Said(0.0, False)
    environment.deterministic = True
    UserEnvironment(environment, "m:Said").check_deterministic()
    environment.deterministic = said
    with pytest.raises(InvalidInput, match="does not say that it is deterministic"):
        UserEnvironment(environment, "m:Said").check_deterministic()


class Gymnasiums(Said):
    """A class whose reset is that of Gymnasium."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # type: ignore[override]
        return "", {}


class Rowless(Said):
    """A class whose reset takes nothing."""

    def reset(self) -> None:  # type: ignore[override]
        pass


def test_a_reset_without_a_row_is_told_how_to_adapt() -> None:
    fault = did(Gymnasiums(0.0, False))["fault"]
    assert "reset(*, seed: Any = None, options: Any = None) -> Any cannot be called" in fault
    assert "its reset(row, seed) calls self.env.reset(seed=seed)" in fault
    assert "makes the environment's action of the text and a text of the observation" in fault
    fault = did(Rowless(0.0, False))["fault"]
    assert fault.endswith("reset() -> None cannot be called as reset(row) or reset(row, seed)")


class Stepless:
    def reset(self, row: Any) -> None:
        pass


class Unasked(Stepless):
    def step(self) -> None:
        pass


class Half(Said):
    def snapshot(self) -> bytes:
        return b""


class Async(Said):
    async def step(self, action: str) -> Any:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Stepless, r"Stepless has no method step; a class has reset\(row\) and step\(action\)"),
        (lambda: None, "NoneType has no method reset"),
        (Unasked, r"step\(\) -> None cannot be called as step\(action\)"),
        (Half, "Half has snapshot but no restore; write both, or neither"),
    ],
)
def test_a_class_without_its_methods_is_refused_before_any_action(kind: Any, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        UserEnvironment.made(kind, {}, "m:Said")


@pytest.mark.filterwarnings("ignore:coroutine")
def test_an_async_step_is_named() -> None:
    assert "step is async, so nothing of it was run" in did(Async())["fault"]


def test_the_first_action_that_came_out_otherwise_is_named() -> None:
    assert did(Said(0.0, False), past=[("a", "00" * 32)]) == {"diverged": 1}


def answered(past: list[Any], result: HostedResult) -> tuple[bytes, Answer]:
    environment = Hosted("m:Said", {}, Hosting(end="."))
    state = canonical({"row": {}, "seed": 1, "past": past})
    turn = environment.turn(state, "go.")
    next(turn)
    with pytest.raises(StopIteration) as end:
        turn.send(result)
    return state, end.value.value


def test_a_step_that_changes_nothing_may_end_an_episode_and_earn() -> None:
    result = HostedResult(ToolOutcome.OK, "so", 0.5, done=True, anchor=b"at 2", unchanged=True)
    state, answer = answered([], result)
    assert answer == Answer("so", state, 0.5, done=True, effect=Effect.NONE, anchor=b"at 2")


def test_behind_a_snapshot_nothing_is_repeated() -> None:
    past = [["a", "00" * 32]]
    _, answer = answered(past, HostedResult(ToolOutcome.OK, "so", snapshot=b"taken"))
    after = json.loads(answer.state)
    assert (after["past"], base64.b64decode(after["snapshot"])) == ([], b"taken")
    assert len(json.loads(answered(past, HostedResult(ToolOutcome.OK))[1].state)["past"]) == 2
