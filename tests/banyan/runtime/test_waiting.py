"""Signs of life: lines where they are kept, one moving line on a terminal."""

import io
import os
import pty
import threading
import time
from collections.abc import Callable

import pytest

from banyan.runtime.waiting import QUIET_S, Waiting

DEADLINE_S = 30


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_log_gets_the_words_at_once_and_again_while_the_work_goes_on() -> None:
    log, done = io.StringIO(), [0]

    def detail() -> str:
        done[0] += 1
        return f"{done[0]} of 9"

    with Waiting("converting", detail, stream=log, every_s=0.01):
        assert log.getvalue() == "converting: 1 of 9\n"
        until(lambda: log.getvalue().count("\n") >= 3)
    lines = log.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == [
        f"converting: {number} of 9" for number in (1, 2, 3)
    ]
    assert lines[2].endswith(" s")


def test_nothing_is_written_after_the_work() -> None:
    log = io.StringIO()
    with Waiting("loading", stream=log, every_s=0.01):
        pass
    assert log.getvalue() == "loading\n"
    assert not any(thread.name == "waiting" for thread in threading.enumerate())


def test_patience_says_nothing_of_work_that_is_over_soon() -> None:
    log = io.StringIO()
    with Waiting("the services end", stream=log, patient=True, every_s=600):
        pass
    assert log.getvalue() == ""
    with Waiting("the services end", stream=log, patient=True, every_s=0.01):
        until(lambda: bool(log.getvalue()))
    assert log.getvalue().startswith("the services end: ")


def test_lines_are_ten_seconds_apart() -> None:
    assert Waiting("x", stream=io.StringIO())._every_s == QUIET_S == 10.0


def test_a_terminal_has_one_line_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    above, below = pty.openpty()
    written = bytearray()
    with os.fdopen(below, "w") as terminal:
        with Waiting("loading " + "x" * 500, stream=terminal, every_s=0.01):
            while written.count(b"\r") < 3:
                written += os.read(above, 4096)
        while b"\n" not in written:
            written += os.read(above, 4096)
    os.close(above)
    pictures = written.decode().split("\r")
    assert written.count(b"\n") == 1 and len(pictures) >= 4
    assert all(picture.startswith("loading x") for picture in pictures[1:-1])
    assert max(len(picture.removesuffix("\x1b[K")) for picture in pictures) <= 79
    assert all(picture.endswith(" s\x1b[K") for picture in pictures[2:-1]), "the time stays"


def test_a_reader_that_is_gone_does_not_stop_the_work() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    with Waiting("loading", stream=stream, every_s=0.01):
        done = True
    assert done
