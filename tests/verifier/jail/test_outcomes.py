"""How runs end: what a program causes is its own, and nothing of one run is in the next."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from banyan.programs.run import Limits, Outcome, Result, Run
from services.verifier.jail.pool import ZygotePool
from services.verifier.jail.select import BACKENDS
from tests.verifier import niceness

LIMITS = Limits(wall_s=5.0, cpu_s=0.5, memory_mb=64, disk_mb=2, files=16, output_bytes=1000)


@pytest_asyncio.fixture(params=BACKENDS)
async def jail(request: pytest.FixtureRequest) -> AsyncIterator[ZygotePool]:
    """A jail of each back end."""
    jail = ZygotePool(request.param, width=2)
    await jail.check()
    yield jail
    await jail.close()


async def run(jail: ZygotePool, program: str, stdin: bytes = b"", **limits: float) -> Result:
    return await jail.run(Run(program, stdin, replace(LIMITS, **limits)))


ENDS = {
    "print(input()[::-1])": (Outcome.DONE, 0),
    "1/0": (Outcome.EXITED, 1),
    "raise SystemExit(7)": (Outcome.EXITED, 7),
    "raise SystemExit('why')": (Outcome.EXITED, 1),
    "import os; os._exit(247)": (Outcome.MEMORY, 247),
    "this is no Python": (Outcome.EXITED, 1),
    "import os; os.abort()": (Outcome.SIGNALLED, None),
    "import ctypes; ctypes.string_at(0)": (Outcome.SIGNALLED, -signal.SIGSEGV),
    "bytearray(1 << 30)": (Outcome.MEMORY, 247),
    "while True: pass": (Outcome.CPU, -signal.SIGKILL),
    "print('x' * 2000)": (Outcome.OUTPUT, None),
    "import sys\nwhile True: print('x' * 99, file=sys.stderr)": (Outcome.OUTPUT, None),
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": (Outcome.EXITED, 1),
    "import os; os.fork()": (Outcome.EXITED, 1),
    "import os; print(1); os.close(1)": (Outcome.EXITED, 1),
}


WAITING = {
    "stopped": "import os, signal, time\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(99)",
    "without its first thread": """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(99,)).start()
ctypes.CDLL(None).syscall(60, 0)
""",
}


@pytest.mark.parametrize("how", WAITING)
async def test_a_program_that_keeps_itself_from_running_waits(jail: ZygotePool, how: str) -> None:
    """Else its leaf would have no score, which is more than that of a wrong answer."""
    result = await run(jail, WAITING[how], wall_s=1.0)
    assert result.outcome is Outcome.WAITED, result


@pytest.mark.parametrize("program", ENDS)
async def test_a_program_ends_as_it_ends(jail: ZygotePool, program: str) -> None:
    outcome, status = ENDS[program]
    result = await run(jail, program, b"abc\n")
    assert result.outcome is outcome, result
    assert status in (None, result.status)
    assert result.outcome.is_programs


async def test_a_program_has_its_input_and_its_output(jail: ZygotePool) -> None:
    text = "äöü\u2028" * 100
    program = "import sys; print(sys.stdin.read(), end=''); print('e', file=sys.stderr)"
    result = await run(jail, program, text.encode(), output_bytes=10_000)
    assert (result.stdout.decode(), result.stderr) == (text, b"e\n")


async def test_a_million_bytes_go_in_and_out(jail: ZygotePool) -> None:
    data = bytes(range(256)) * 4096
    program = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    result = await run(jail, program, data, output_bytes=len(data))
    assert (result.outcome, result.stdout) == (Outcome.DONE, data)
    cut = await run(jail, program, data, output_bytes=len(data) - 1)
    assert (cut.outcome, cut.stdout) == (Outcome.OUTPUT, data[:-1])


async def test_a_program_that_sleeps_has_waited_and_one_that_is_kept_from_running_has_not(
    jail: ZygotePool,
) -> None:
    slept = await run(jail, "import time; time.sleep(60)", wall_s=0.3)
    assert slept.outcome is Outcome.WAITED and slept.outcome.is_programs
    busy = await run(jail, "while True: pass", wall_s=0.3, cpu_s=60.0)
    assert busy.outcome is Outcome.WALL and not busy.outcome.is_programs


async def test_processor_time_counts_over_all_processes(jail: ZygotePool) -> None:
    program = "import os\nos.fork(), os.fork()\nwhile True: pass"
    result = await run(jail, program, processes=4)
    assert result.outcome is Outcome.CPU
    assert result.cpu_s < LIMITS.cpu_s + 0.6


async def test_disk_and_files_are_bounded(jail: ZygotePool) -> None:
    one = await run(jail, "open('f', 'wb').write(bytes(1 << 23))")
    assert one.outcome in (Outcome.EXITED, Outcome.DISK)
    many = await run(
        jail, "import os, time\nfor i in range(99): os.mkdir(str(i))\ntime.sleep(1)", cpu_s=5.0
    )
    assert many.outcome in (Outcome.EXITED, Outcome.DISK)


async def test_a_folder_of_great_depth_or_closed_is_removed(jail: ZygotePool) -> None:
    deep = "import os\nfor _ in range(14): os.mkdir('d' * 200); os.chdir('d' * 200)"
    assert (await run(jail, deep)).outcome is Outcome.DONE
    closed = "import os\nos.umask(0o777); os.mkdir('a'); print(os.listdir('.'))"
    assert (await run(jail, closed)).stdout == b"['a']\n"
    assert (await run(jail, "import os; print(os.listdir('.'))")).stdout == b"[]\n"


async def test_programs_run_beside_each_other(jail: ZygotePool) -> None:
    wait = "import time; time.sleep(1.0); print('done')"
    started = asyncio.get_running_loop().time()
    results = await asyncio.gather(*(run(jail, wait) for _ in range(2)))
    assert [result.stdout for result in results] == [b"done\n"] * 2
    assert asyncio.get_running_loop().time() - started < 1.9


async def test_a_busy_machine_runs_services_before_programs(jail: ZygotePool) -> None:
    result = await run(jail, "import os; print(os.getpriority(os.PRIO_PROCESS, 0))")
    assert int(result.stdout) == min(os.nice(0) + 15, 19)
    assert (min(os.nice(0) + 10, 19), niceness.SESSION) in set(niceness.of_children())


async def test_a_program_sees_no_traceback_of_ours(jail: ZygotePool) -> None:
    result = await run(jail, "import sys\ndef f(): 1/0\nf()")
    assert b"services" not in result.stderr and b"ZeroDivisionError" in result.stderr


async def test_a_zygote_that_is_killed_is_tried_once_more(jail: ZygotePool) -> None:
    await run(jail, "1")
    for zygote in list(jail._idle):
        zygote._process.kill()
        await zygote._process.wait()
    assert (await run(jail, "print(2)")).stdout == b"2\n"


async def test_no_run_is_called_done_where_the_runner_is_lost_twice(
    jail: ZygotePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise OSError("no more processes")

    await run(jail, "1")
    while jail._idle:
        await jail._idle.pop().close()
    monkeypatch.setattr("services.verifier.jail.zygote.Zygote.start", lambda *_: refuse())
    result = await run(jail, "print(2)")
    assert result.outcome is Outcome.LOST and b"no more processes" in result.stderr


WAITS_FOR_OTHERS = """
import os, time
while True:
    if not os.fork():
        end = time.process_time() + 0.05
        while time.process_time() < end: pass
        os._exit(0)
    os.wait()
"""


async def test_processor_time_of_children_that_have_ended_counts(jail: ZygotePool) -> None:
    result = await run(jail, WAITS_FOR_OTHERS, processes=4, wall_s=30.0)
    assert result.outcome is Outcome.CPU and result.wall_s < 15.0, result


FILLS = "for n in range(4): open(str(n), 'wb').write(bytes(1 << 20))"


async def test_a_program_that_ends_at_once_has_filled_its_folder_all_the_same() -> None:
    jail = ZygotePool("process", width=1)
    try:
        for _ in range(5):
            result = await run(jail, FILLS)
            assert result.outcome is Outcome.DISK, result
    finally:
        await jail.close()
