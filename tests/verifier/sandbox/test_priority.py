"""Scores give way to services."""

import asyncio
import errno
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from banyan.plugins import Scored
from services.verifier.sandbox.confinement import priority
from services.verifier.sandbox.confinement.launch import launch
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from tests.verifier import niceness

CHILD = (min(os.nice(0) + 10, 19), niceness.SESSION)


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    pool = Pool(Limits())
    yield pool
    await pool.close()


async def test_a_busy_machine_runs_services_before_children_and_these_before_scores(
    pool: Pool,
) -> None:
    spec = ScorerSpec("rewards:niceness", {})
    assert (await pool.score(spec, "x", {})).outcome == Scored(float(min(os.nice(0) + 15, 19)))
    assert CHILD in set(niceness.of_children())


async def test_a_score_stays_in_the_session_that_gives_way(pool: Pool) -> None:
    spec = ScorerSpec("rewards:group_and_session", {})
    outcome = (await pool.score(spec, "x", {})).outcome
    assert isinstance(outcome, Scored)
    session = int(outcome.value)
    assert session == 0 or (os.getpriority(os.PRIO_PROCESS, session), niceness.SESSION) == CHILD


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def test_a_child_gives_way_before_it_says_so(child: int) -> None:
    priority.yield_from_start(child)
    assert CHILD in set(niceness.of_children())


def test_nothing_is_said_of_a_child_that_has_ended() -> None:
    priority.yield_from_start(2**22 + 1)


@pytest.mark.parametrize(
    ("number", "calls"),
    [(errno.EAGAIN, 3), (errno.ENOENT, 1), (errno.EACCES, 1)],
)
def test_a_kernel_that_is_asked_too_often_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, number: int, calls: int
) -> None:
    said: list[str] = []

    def say(process: str) -> None:
        said.append(process)
        if len(said) < 3:
            raise OSError(number, "not now")

    monkeypatch.setattr(priority, "_say", say)
    priority.give_way(os.nice(0))
    assert said == ["self"] * calls


def test_a_kernel_that_always_refuses_holds_up_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(process: str) -> None:
        raise BlockingIOError(errno.EAGAIN, "not now")

    monkeypatch.setattr(priority, "_say", say)
    monkeypatch.setattr(priority, "_WITHIN_S", 0.1)
    priority.give_way(os.nice(0))


def test_a_control_group_weighs_as_much_as_a_nice_process() -> None:
    assert priority.weight() == 336  # the kernel's table has 335 for a niceness of 5


async def test_children_start_one_after_the_other_and_each_gives_way() -> None:
    order: list[str] = []

    async def start(name: str) -> asyncio.subprocess.Process:
        process = await launch("sleep", "60")
        order.append(name)
        assert CHILD in set(niceness.of_children())
        return process

    async def beside() -> None:
        while order[-1:] != ["c"]:
            order.append("loop")
            await asyncio.sleep(0)

    *started, _ = await asyncio.gather(start("a"), start("b"), start("c"), beside())
    for process in started:
        process.kill()
        await process.wait()
    places = [order.index(name) for name in "abc"]
    assert places == sorted(places) and all("loop" in order[a:b] for a, b in pairwise(places))


def test_each_loop_starts_its_own_children() -> None:
    async def two() -> None:
        for process in await asyncio.gather(launch("true"), launch("true")):
            await process.wait()

    for _ in range(2):  # a lock of the first loop would be refused in the second
        asyncio.run(two())
