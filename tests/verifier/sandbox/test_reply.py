"""The wait for an attempt's frame: what is in it, and how long an attempt has."""

import contextlib
import os
import time
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.programs.run import Outcome
from services.verifier.filter.user_function import UserFunction
from services.verifier.sandbox import child, frames, reply
from services.verifier.sandbox.confinement import processes

DEADLINE_S = 0.05


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def used(monkeypatch: pytest.MonkeyPatch, share: float) -> list[float]:
    """Have attempts use a share of each deadline as processor time; return what was read."""
    read: list[float] = []

    def cpu_s() -> float:
        read.append(share * (len(read) + 1) * DEADLINE_S)
        return read[-1]

    monkeypatch.setattr(processes, "cpu_s", cpu_s)
    return read


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (frames.pack({"value": 1.0}), {"value": 1.0}),
        (frames.pack({"value": 1.0}) * 2, {"value": 1.0}),
        (frames.HEADER.pack(frames.MAX_ANSWER_BYTES + 1), Outcome.OUTPUT),
        (frames.HEADER.pack(9) + b"{}", None),
        (b"\1", None),
        (b"", None),
    ],
)
def test_a_frame_is_read_and_anything_else_is_no_answer(written: bytes, seen: Any) -> None:
    with pipe() as (inside, outside):
        os.write(outside, written)
        os.close(outside)
        assert reply.await_frame(inside, DEADLINE_S) == seen


@pytest.mark.parametrize(
    ("share", "rounds"), [(0.0, 1), (0.02, 1), (0.08, 5), (0.15, 4), (0.3, 2), (0.6, 1)]
)
def test_an_attempt_that_runs_too_little_has_more_time_and_one_that_sleeps_has_not(
    monkeypatch: pytest.MonkeyPatch, share: float, rounds: int
) -> None:
    """Half of a deadline is enough to blame it: at 0.3 of each it has that after two."""
    read = used(monkeypatch, share)
    start = time.monotonic()
    with pipe() as (inside, _):
        assert reply.await_frame(inside, DEADLINE_S) is Outcome.WALL
    assert len(read) == rounds and time.monotonic() - start >= rounds * DEADLINE_S


def test_an_answer_in_extra_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipe() as (inside, outside):

        def cpu_s() -> float:
            os.write(outside, frames.pack({"value": 1.0}))
            return 0.1 * DEADLINE_S

        monkeypatch.setattr(processes, "cpu_s", cpu_s)
        assert reply.await_frame(inside, DEADLINE_S) == {"value": 1.0}


def test_processor_time_below_is_seen_while_it_is_used() -> None:
    process = os.fork()
    if process == 0:
        while True:
            pass
    try:
        before, deadline = processes.cpu_s(), time.monotonic() + 20.0
        while processes.cpu_s() < before + 0.05:
            assert time.monotonic() < deadline
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)


@pytest.mark.parametrize(("value", "wrong"), [(-1, -1.0), (0.5, 0.5), (True, 1.0)])
def test_the_value_of_a_wrong_answer_is_its_scorers_or_its_functions(
    value: Any, wrong: float
) -> None:
    def reward(completion: str) -> float:
        return 1.0

    assert child._wrong(UserFunction(reward, "rewards:reward")) == 0.0
    vars(reward)["wrong"] = value
    assert child._wrong(UserFunction(reward, "rewards:reward")) == wrong
    assert child._wrong(SimpleNamespace(wrong=value)) == wrong


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e101, "0", None, [], Decimal(1)])
def test_another_value_of_a_wrong_answer_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="its `wrong` must be a number within"):
        child._wrong(SimpleNamespace(wrong=value))
