"""Programs in the jail: runs a second of each back end, beside an interpreter without a jail.

A run is a program of one line, from its text to its output. At once: programs that run at the same
time, each in a jail of its own. monty interprets a smaller language, and goes on from states: a
fork is a run of one line on a state with 100 variables, with the state after it.
"""

import asyncio
import subprocess
import sys
import time

from banyan.programs.run import Run
from bench.harness.table import Result, median
from services.verifier.jail.monty import Sessions
from services.verifier.jail.monty_jail import MontyJail
from services.verifier.jail.pool import ZygotePool
from services.verifier.jail.port import Jail
from services.verifier.jail.select import BACKENDS

TIMES, RUNS = 5, 200
AT_ONCE = (1, 4, 16, 64)
QUEUE = 8  # programs that run or wait where two runners do as many as they can
MONTY = "monty"
RUNS_OF = {MONTY: 5000}
BARS = {"process": 200, "namespaces": 60, MONTY: 5000}
FORK_BAR_MS = 2
VARIABLES = "\n".join(f"v{i} = [{i}, '{i}', {{'k': {i}}}]" for i in range(100))
PROGRAM = "print(sum(range(10)))"
PRINTED = b"45\n"


def run() -> Result:
    """Time all back ends; the bars are of two programs at once, as the verifier has."""
    result = Result("jail")
    bare = median([_bare() for _ in range(TIMES)])
    for backend in (*BACKENDS, MONTY):
        runs_s = median([asyncio.run(_throughput(backend)) for _ in range(TIMES)])
        result.add(f"{backend}, two at once", runs_s, "runs/s", f"at least {BARS[backend]}")
        result.add(f"{backend} / no jail", runs_s / bare, "")
        for at_once in AT_ONCE:
            waits = asyncio.run(_waits(backend, at_once))
            result.add(f"{backend}, {at_once} at once, p50", 1e3 * waits[len(waits) // 2], "ms")
            result.add(
                f"{backend}, {at_once} at once, p99", 1e3 * waits[99 * len(waits) // 100], "ms"
            )
    result.add(
        "monty, fork of 100 variables",
        median([asyncio.run(_fork_ms()) for _ in range(TIMES)]),
        "ms",
        f"at most {FORK_BAR_MS}",
    )
    result.add("no jail: python -I -S -c, two at once", bare, "runs/s")
    result.notes.append(
        f"{RUNS} runs of {PROGRAM!r} ({RUNS_OF[MONTY]} with monty), {TIMES} times, medians"
    )
    return result


async def _jail(backend: str, width: int) -> Jail:
    """Return a jail with so many warm runners."""
    jail: Jail
    if backend == MONTY:
        jail = MontyJail(await Sessions.start(width=width))
    else:
        jail = ZygotePool(backend, width=width)
    await asyncio.gather(*(_timed(jail) for _ in range(width)))
    return jail


async def _throughput(backend: str) -> float:
    """Return runs a second of two runners that are warm and never without work."""
    jail, runs = await _jail(backend, 2), RUNS_OF.get(backend, RUNS)

    async def one_after_the_other() -> None:
        for _ in range(runs // QUEUE):
            await _timed(jail)

    try:
        start = time.perf_counter()
        await asyncio.gather(*(one_after_the_other() for _ in range(QUEUE)))
        return runs / (time.perf_counter() - start)
    finally:
        await jail.close()


async def _waits(backend: str, at_once: int) -> list[float]:
    """Return the sorted seconds of runs, with so many at the same time."""
    jail, runs = await _jail(backend, at_once), RUNS_OF.get(backend, RUNS)
    try:
        waits: list[float] = []

        async def one_after_the_other() -> None:
            for _ in range(max(4, runs // at_once)):
                waits.append(await _timed(jail))

        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
        return sorted(waits)
    finally:
        await jail.close()


async def _fork_ms() -> float:
    """Return the median milliseconds of a run on a state, with the state after it."""
    sessions, times = await Sessions.start(width=1), []
    try:
        root = await sessions.run(VARIABLES)
        for number in range(RUNS):
            start = time.perf_counter()
            fork = await sessions.run(f"v0.append({number})", root.state)
            times.append(1e3 * (time.perf_counter() - start))
            assert fork.state != root.state and not fork.stderr, fork
        return median(times)
    finally:
        await sessions.close()


async def _timed(jail: Jail) -> float:
    start = time.perf_counter()
    result = await jail.run(Run(PROGRAM))
    assert result.stdout == PRINTED, result
    return time.perf_counter() - start


def _bare() -> float:
    """Return runs a second of a new interpreter each, two at once."""
    start, count = time.perf_counter(), 40
    for _ in range(count // 2):
        both = [
            subprocess.Popen([sys.executable, "-I", "-S", "-c", PROGRAM], stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for process in both:
            assert process.communicate()[0] == PRINTED
    return count / (time.perf_counter() - start)
