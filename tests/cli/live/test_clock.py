"""The view moves by a clock: plain lines while nothing happens, and a panel on a terminal."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from banyan.cli.render.live import LiveView, Past
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from tests.cli.live.news import RECIPE, Clock, news

ROOT = Path(__file__).parents[3]
DEADLINE_S = 30
BEFORE = {"before-greedy": 44, "before-sampled": 44}


def test_a_log_gets_a_line_after_ten_seconds_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    loading = ["learner starting"]
    with LiveView(RECIPE, processes=lambda: ", ".join(loading), clock=clock) as view:
        for second in range(61):
            clock.seconds = float(second)
            if second == 26:
                loading.clear()
            if second == 5:
                view.update(news(rs.RUN_STATE_STARTING))
            if second == 27:
                view.update(news(rs.RUN_STATE_EVALUATING_BEFORE, 0, done={"before-greedy": 9}))
            if second == 50:
                view.update(news(rs.RUN_STATE_EVALUATING_BEFORE, 0, done=BEFORE))
            view.tick()
    assert capsys.readouterr().out.splitlines() == [
        "[   5.0 s] starting",
        "[  15.0 s] loading the model: learner starting",
        "[  25.0 s] loading the model: learner starting",
        "[  27.0 s] evaluating before",
        "[  37.0 s] evaluating before: greedy 9 of 44, sampled 0 of 44 rows",
        "[  47.0 s] evaluating before: greedy 9 of 44, sampled 0 of 44 rows",
        "[  50.0 s] before-greedy: 100.0 %",
        "[  50.0 s] before-sampled: 100.0 %",
        "[  60.0 s] evaluating before",
    ]


def test_a_log_says_something_every_ten_seconds_before_the_first_news(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with LiveView(RECIPE, clock=clock) as view:
        for second in range(25):
            clock.seconds = float(second)
            assert view.pause() == (-second % 10 if second else 10)
            view.tick()
    assert capsys.readouterr().out.count("loading the model") == 2


def test_a_long_step_counts_down(capsys: pytest.CaptureFixture[str]) -> None:
    """30 s a step, an evaluation of 10 s at the begin, and so two more to come."""
    clock = Clock()
    with LiveView(RECIPE, clock=clock) as view:
        view.update(news(rs.RUN_STATE_EVALUATING_BEFORE, 0, done={"before-greedy": 0}))
        clock.seconds = 10.0
        view.update(news(rs.RUN_STATE_TRAINING, 0, done=BEFORE))
        for step in range(1, 6):
            clock.seconds = 10.0 + 30.0 * step
            view.update(news(rs.RUN_STATE_TRAINING, step, done=BEFORE))
        for second in (10, 20):
            clock.seconds = 160.0 + second
            view.tick()
    lines = [line for line in capsys.readouterr().out.splitlines() if "left" in line]
    assert lines[-3:] == [
        "[ 160.0 s] step   5/40  reward 0.500  sampled 0  saved 0  members 0  left 1070 s",
        "[ 170.0 s] step 6 of 40: 0 of 8 groups sampled and scored  left 1060 s",
        "[ 180.0 s] step 6 of 40: 0 of 8 groups sampled and scored  left 1050 s",
    ]


def test_a_resumed_run_has_an_estimate_before_its_first_new_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock, hour = Clock(), 3_600_000
    policies = [
        rs.StoredPolicy(
            published=events_pb2.PolicyPublished(
                policy=tree_pb2.PolicyRef(learner_epoch=1 + (step >= 15), step=step),
                metrics={"reward": 0.1} if step else {},
            ),
            # 2 s a step, a pause of an hour before step 15, and an evaluation of 8 s after step 20.
            stored_unix_ms=10**12 + 2000 * step + (step >= 15) * hour + 8000 * (step > 20),
        )
        for step in range(31)
    ]
    done = BEFORE | {"step-20-greedy": 44, "step-20-sampled": 44}
    with LiveView(RECIPE, Past(policies, 70.0), clock=clock) as view:
        view.update(news(rs.RUN_STATE_TRAINING, *range(31), done=done, epoch=2))
        clock.seconds = 12.0
        view.tick()
        clock.seconds = 15.0
        view.update(news(rs.RUN_STATE_TRAINING, 31, done=done, epoch=3))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[   0.0 s] training"
    assert lines[1].endswith("left 28 s"), "ten steps of 2 s, and the last evaluation of 8 s"
    assert "step  31/40" in lines[2] and lines[2].endswith("left 26 s")


# -- on a terminal --

PROGRAM = """
import sys
from banyan.cli.render.live import LiveView
from banyan.v1 import runstore_service_pb2 as rs
from tests.cli.live.news import RECIPE, Clock, news
clock = Clock()
loading = ["learner starting"]
with LiveView(RECIPE, processes=lambda: ", ".join(loading), clock=clock) as view:
    for line in sys.stdin:
        clock.seconds += 1.0
        if line == "evaluate\\n":
            loading.clear()
            view.update(news(rs.RUN_STATE_EVALUATING_BEFORE, 0, done={"before-greedy": 22}))
        view.tick()
"""


@contextlib.contextmanager
def terminal() -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """Run the program with a terminal of 100 columns; yield it and what it writes to."""
    above, below = pty.openpty()
    termios.tcsetwinsize(below, (30, 100))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=below,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
    )
    os.close(below)
    try:
        yield process, above
    finally:
        process.kill()
        process.communicate()
        os.close(above)


def read_until(descriptor: int, words: str) -> str:
    """Read what a terminal got until it shows some words; return all of it without its colours."""
    shown, end = "", time.monotonic() + DEADLINE_S
    while words not in shown:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        assert ready, shown
        shown += re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", os.read(descriptor, 4096).decode())
    return shown


def test_a_terminal_shows_the_time_and_a_bar_that_move_without_news() -> None:
    with terminal() as (process, above):
        assert process.stdin is not None
        read_until(above, "loading the model: learner starting")
        for second in (1, 2, 3):
            process.stdin.write(b"\n")
            process.stdin.flush()
            read_until(above, f"{second} s")
        process.stdin.write(b"evaluate\n")
        process.stdin.flush()
        shown = read_until(above, "evaluating before: greedy 22 of 44, sampled 0 of 44 rows")
        bar = max(re.findall("[━╸╺]+", shown), key=len)
        assert len(bar) == 60
