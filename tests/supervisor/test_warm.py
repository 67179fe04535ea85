"""Processes that are forked from one that has imported what they need."""

import asyncio
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from banyan.runtime import torch_environment
from services.chassis.process import forking
from services.supervisor import adopted, warm
from services.supervisor.child import Child
from services.supervisor.warm import WarmProcess
from tests.supervisor.supervised import (
    FakeRunStore,
    alive,
    change_workers,
    supervised,
    workers,
)
from tests.supervisor.warmed import FORKED, ROOT, child, holds, started


async def test_a_forked_process_is_as_one_started_by_its_command(
    process: WarmProcess, tmp_path: Path
) -> None:
    """But for what has been imported already."""
    one = child(tmp_path, OMP_NUM_THREADS="3", BANYAN_RUN="r", BANYAN_END="0")
    told = await started(process, one)
    assert (told["name"], told["arguments"], told["input"]) == ("__main__", [], os.devnull)
    assert told["parent"] == os.getpid() and told["session"] == one.pid
    assert told["imported"] and not told["again"] and told["kernels_name"] == "tests.superviso"
    expected = {**os.environ, **one.env, "BANYAN_PARENT": str(os.getpid())}
    assert told["environ"] == expected
    assert await one.wait() == 0 and one.tail(1) == "to the log, too"
    cold = child(tmp_path, "cold", BANYAN_END="0")
    cold.command = [sys.executable, "-m", FORKED]
    await cold.start()
    assert await cold.wait() == 0
    assert told["files"] == json.loads(cold.log.read_text().splitlines()[0])["files"]


@pytest.mark.parametrize(("end", "status"), [("3", 3), ("kill", -signal.SIGKILL)])
async def test_its_exit_status_is_known(
    process: WarmProcess, tmp_path: Path, end: str, status: int
) -> None:
    one = child(tmp_path, BANYAN_END=end)
    await started(process, one)
    assert await one.wait() == status == one.last_status
    assert not one.running and not alive(one.pid)
    one.signal(signal.SIGTERM)  # is sent to nobody


async def test_it_is_stopped_as_any_child(process: WarmProcess, tmp_path: Path) -> None:
    one = child(tmp_path)
    await started(process, one)
    await one.stop(5.0)
    assert one.process is not None and one.process.returncode == -signal.SIGTERM


async def test_processes_of_one_environment_share_an_import_and_draw_other_numbers(
    process: WarmProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = [child(tmp_path, str(n), BANYAN_NODE_ID=str(n), BANYAN_END="0") for n in range(2)]
    monkeypatch.setenv("LEFT", "1")
    told = [await started(process, ones[0])]
    first = process.pid
    monkeypatch.delenv("LEFT")
    told.append(await started(process, ones[1]))
    assert told[0]["drawn"] != told[1]["drawn"] and told[0]["files"] == told[1]["files"]
    assert ["LEFT" in one["environ"] for one in told] == [True, False]
    other = child(tmp_path, "other", OMP_NUM_THREADS="7", BANYAN_END="0")
    assert (await started(process, other))["environ"]["OMP_NUM_THREADS"] == "7"
    assert process.pid != first and not alive(first)
    assert [await one.wait() for one in (*ones, other)] == [0, 0, 0]


async def test_the_death_of_the_one_that_forks_is_nobodys_death(
    process: WarmProcess, tmp_path: Path, eventually
) -> None:
    one = child(tmp_path)
    await started(process, one)
    await eventually(lambda: one.tail(1) == "waits", 10.0)
    first = process.pid
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: not alive(first), 10.0)
    assert one.running and alive(one.pid)
    again = child(tmp_path, "again", BANYAN_END="0")
    forked = await process.start(again)
    assert forked is not None and await forked.wait() == 0
    assert one.running and process.pid != first
    await one.stop(5.0)


async def test_one_that_does_not_answer_is_ended_and_the_child_starts_by_its_command(
    process: WarmProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await started(process, child(tmp_path, BANYAN_END="0"))
    first = process.pid
    monkeypatch.setattr(warm, "FORK_S", 1.0)
    os.kill(first, signal.SIGSTOP)
    assert await process.start(child(tmp_path, "late", BANYAN_END="0")) is None
    assert not alive(first) and process.pid == 0
    assert "late imports torch itself: no process was forked" in caplog.text
    assert not (tmp_path / "late.log").read_text()


async def test_beside_an_accelerator_nothing_is_imported(
    process: WarmProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(warm, "_ACCELERATORS", (tmp_path / "nvidiactl",))
    assert await process.start(child(tmp_path)) is None
    assert process.pid == 0 and not caplog.records


async def test_a_failed_import_is_told_and_found_in_its_log(
    process: WarmProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await process.start(child(tmp_path, IMPORT_FAILS="1")) is None
    assert f"c imports torch itself: the process that imports it ended; see {tmp_path}" in (
        caplog.text
    )
    assert "ImportError: a broken library" in (tmp_path / "warm.log").read_text()


async def test_an_import_that_takes_too_long_is_given_up(
    process: WarmProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(warm, "LOAD_S", 0.1)
    assert await process.start(child(tmp_path, IMPORT_S="60")) is None
    assert "torch was not imported within 0 s" in caplog.text and process.pid == 0


async def test_a_stop_while_it_imports_is_quick_and_says_nothing(
    process: WarmProcess, tmp_path: Path, eventually, caplog: pytest.LogCaptureFixture
) -> None:
    starts = [
        asyncio.create_task(process.start(child(tmp_path, str(n), IMPORT_S="60"))) for n in range(2)
    ]
    await eventually(lambda: process.pid and alive(process.pid), 10.0)
    async with asyncio.timeout(5):
        await process.end()
        assert await asyncio.gather(*starts) == [None, None]
    assert not caplog.records


async def test_a_log_that_cannot_be_written_is_the_callers_error(
    process: WarmProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await started(process, child(tmp_path, BANYAN_END="0"))
    first, one = process.pid, child(tmp_path)
    one.log = tmp_path / "missing" / "c.log"
    assert await process.start(one) is None and not caplog.records
    assert process.pid == first, "the one that forks is as good as before"
    with pytest.raises(FileNotFoundError):
        await one.start()


@pytest.mark.parametrize("kills", [False, True])
async def test_a_supervisor_ends_it_with_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually, kills: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(warm, "IMPORTED", ("tests.supervisor.imported",))
    store = FakeRunStore()
    async with supervised(tmp_path, store, {}) as supervisor:

        def forked(one: Child) -> None:
            one.warm, one.command = True, [FORKED]

        change_workers(supervisor, forked)
        store.want(("rollout", 1))
        await eventually(lambda: workers(supervisor) and workers(supervisor)[0].running)
        (node,), process = workers(supervisor), supervisor._warm
        pids = (node.pid, process.pid)
        assert all(alive(pid) for pid in pids)
        if kills:
            supervisor.kill()
            await eventually(lambda: not any(alive(pid) for pid in pids))
    assert not any(alive(pid) for pid in pids)


@pytest.mark.skipif(len(torch_environment.CORES) < 2, reason="one core: nothing to keep to")
@pytest.mark.parametrize(("binds", "compute"), [(True, 1), (False, len(torch_environment.CORES))])
async def test_torchs_threads_keep_to_cores_as_if_the_process_had_imported_it(
    process: WarmProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    binds: bool,
    compute: int,
) -> None:
    monkeypatch.setattr(warm, "IMPORTED", ("torch",))
    one = child(tmp_path)
    one.command = ["tests.supervisor.computing"]
    one.env["OMP_NUM_THREADS"] = str(len(torch_environment.CORES))
    torch_environment.bind(one.env, len(torch_environment.CORES) if binds else 1)
    drawn = set()
    for _ in range(2):
        forked = await process.start(one)
        assert forked is not None and await forked.wait() == 0
        told = json.loads(one.log.read_text().splitlines()[-1])
        drawn.add(told.pop("drawn"))
        assert told == {
            "imported": True,
            "main": len(torch_environment.CORES),
            "compute": compute,
        }
    assert len(drawn) == 2, "each draws other numbers"


def test_a_request_whose_sender_is_gone_starts_nothing(tmp_path: Path) -> None:
    """A process that nobody knows of would never be stopped."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "services.chassis.process.forking"]
    process = subprocess.Popen(command, stdin=theirs, stderr=subprocess.DEVNULL, cwd=ROOT)
    theirs.close()
    ours.settimeout(20)
    assert ours.recv(64) == forking.READY
    process.send_signal(signal.SIGSTOP)
    request = {
        "module": FORKED,
        "environ": {**os.environ, "PYTHONPATH": str(ROOT), "BANYAN_END": "0"},
    }
    with (tmp_path / "log").open("wb") as out, ours:
        socket.send_fds(ours, [json.dumps(request).encode()], [out.fileno()])
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) != 0  # it could not answer
    # Every process that holds the log is gone once nobody has it open.
    mine = [f for f in Path("/proc").glob("[0-9]*/fd/*") if holds(f, tmp_path / "log")]
    assert not (tmp_path / "log").read_text() and not mine


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("services.supervisor.adopted.os.pidfd_open", OSError(24, "no descriptor")), "descriptor"),
        (("services.supervisor.adopted._when_ended", OSError(28, "no room")), "no room"),
        (("services.supervisor.adopted._adopt", OSError(22, "no such thing")), "no such thing"),
        (("services.chassis.process.forking.MOST", 10), "has more than 10 bytes"),
    ],
)
async def test_what_hinders_a_fork_leaves_no_process(
    process: WarmProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: tuple[str, Any],
    words: str,
) -> None:
    await started(process, child(tmp_path, BANYAN_END="0"))
    name, instead = change

    def fails(*_: Any) -> None:
        raise instead

    monkeypatch.setattr(name, fails if isinstance(instead, Exception) else instead)
    late = child(tmp_path, "late")
    assert await process.start(late) is None and words in caplog.text
    assert process.pid == 0
    assert not [f for f in Path("/proc").glob("[0-9]*/fd/*") if holds(f, late.log)]


def test_only_while_it_adopts_does_a_process_get_other_children() -> None:
    flag = ctypes.c_int(-1)

    def adopts() -> bool:
        ctypes.CDLL(None).prctl(37, ctypes.byref(flag), 0, 0, 0)
        return bool(flag.value)

    assert not adopts()
    with adopted.adopting():
        with adopted.adopting():
            assert adopts()
        assert adopts()
    assert not adopts()


@pytest.mark.parametrize("stopped", [False, True])
def test_forked_processes_die_with_a_killed_launcher(tmp_path: Path, stopped: bool) -> None:
    launcher = f"""
import asyncio
from pathlib import Path
from services.supervisor import warm
from tests.supervisor.warmed import child, started
warm.IMPORTED = ("tests.supervisor.imported",)
async def main():
    process = warm.WarmProcess(Path({str(tmp_path)!r}, "warm.log"))
    one = child(Path({str(tmp_path)!r}))
    await started(process, one)
    while one.tail(1) != "waits":
        await asyncio.sleep(0.01)
    print(one.pid, process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", launcher]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2 and all(alive(pid) for pid in pids)
        ends = [os.pidfd_open(pid) for pid in pids]
        if stopped:
            os.kill(pids[1], signal.SIGSTOP)
        process.kill()
    for end in ends:
        ready, _, _ = select.select([end], [], [], 10)
        os.close(end)
        assert ready
