"""Processes that are forked in odd surroundings, or while something dies."""

import contextlib
import os
import resource
import time
from pathlib import Path

import pytest

from banyan.runtime import torch_environment
from services.supervisor import warm
from services.supervisor.fleet import ProcessCommands
from services.supervisor.state import StateFolder
from services.supervisor.warm import WarmProcess
from tests.supervisor.warmed import child, started

HIGH = 2000
"""A descriptor beyond those that `select` can wait for."""


def now() -> float:
    """Return the clock by which the kernel says when a process began."""
    return float(Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK")


def zombies(since: float) -> set[int]:
    """Return children of this process that have ended and that nobody has asked how.

    Those of earlier tests do not count.
    """
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            said = file.read_text().rpartition(")")[2].split()
            if (said[0], int(said[1])) == ("Z", os.getpid()) and int(said[19]) >= int(since):
                found.add(int(file.parent.name))
    return found


async def test_a_process_that_cannot_begin_is_started_by_its_command(
    process: WarmProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, before, begun = child(tmp_path, CHILD_FAILS="1"), now(), time.monotonic()
    assert await process.start(one) is None
    assert time.monotonic() - begun < warm.FORK_S, "nobody waits for an answer that cannot come"
    assert f"did not begin, see {one.log}" in caplog.text and not zombies(before)
    assert "object is not callable" in one.log.read_text(), "its own log says why"


async def test_a_death_between_fork_and_answer_leaves_nobody(
    process: WarmProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = now()
    for number in range(3):
        one = child(tmp_path, str(number), FORKER_DIES="1")
        assert await process.start(one) is None and not one.log.read_text()
        assert not zombies(before)
    assert "no process was forked" in caplog.text


async def test_a_variable_without_a_name_is_left_out(process: WarmProcess, tmp_path: Path) -> None:
    """An environment may hold one, which no library call can set."""
    told = await started(process, child(tmp_path, **{"": "x"}, BANYAN_RUN="r", BANYAN_END="0"))
    assert told["environ"]["BANYAN_RUN"] == "r"


async def test_with_many_open_files_the_process_is_still_asked(
    process: WarmProcess, tmp_path: Path
) -> None:
    await started(process, child(tmp_path, BANYAN_END="0"))
    first, requests = process.pid, process._requests
    assert requests is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in range(HIGH + 1):  # not without a limit, which is -1
        resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH + 1, hard))
    try:
        high = os.dup2(requests.fileno(), HIGH)
        requests.close()
        process._requests = type(requests)(fileno=high)
        await started(process, child(tmp_path, "again", BANYAN_END="0"))
        assert process.pid == first
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(len(torch_environment.CORES) < 2, reason="one core: nothing to take away")
async def test_a_process_gets_the_cores_that_its_parent_has_now(
    process: WarmProcess, tmp_path: Path
) -> None:
    cores = sorted(torch_environment.CORES)
    told = [await started(process, child(tmp_path, "all", BANYAN_END="0"))]
    os.sched_setaffinity(0, cores[:1])
    try:
        told.append(await started(process, child(tmp_path, "one", BANYAN_END="0")))
    finally:
        os.sched_setaffinity(0, cores)
    assert [one["cores"] for one in told] == [cores, cores[:1]]


@pytest.mark.parametrize(("inherited", "binds"), [({}, "true"), ({"OMP_PROC_BIND": "0"}, None)])
def test_a_users_own_binding_of_threads_holds(
    tmp_path: Path, inherited: dict[str, str], binds: str | None
) -> None:
    ports = dict.fromkeys(("nats", "treestore", "verifier"), 1)
    commands = ProcessCommands(StateFolder(tmp_path, ports), inherited=inherited)
    threads = len(torch_environment.CORES)
    learner = commands.worker("r", "learner", 0, threads=threads, port=1)
    assert learner.env.get("OMP_PROC_BIND") == binds
