"""Programs in the jail: runs a second of each back end, beside an interpreter without a jail.

A run is a program of one line, from its text to its output. At once: programs that run at the same
time, each in a jail of its own.
"""

import asyncio
import subprocess
import sys
import time

from banyan.programs.run import Run
from bench.harness.table import Result, median
from services.verifier.jail.pool import ZygotePool
from services.verifier.jail.select import BACKENDS

TIMES, RUNS = 5, 200
AT_ONCE = (1, 4, 16, 64)
BARS = {"process": 200, "namespaces": 60}
PROGRAM = "print(sum(range(10)))"
PRINTED = b"45\n"


def run() -> Result:
    """Time all back ends; the bars are of two programs at once, as the verifier has."""
    result = Result("jail")
    bare = median([_bare() for _ in range(TIMES)])
    for backend in BACKENDS:
        runs_s = median([asyncio.run(_throughput(backend)) for _ in range(TIMES)])
        result.add(f"{backend}, two at once", runs_s, "runs/s", f"at least {BARS[backend]}")
        result.add(f"{backend} / no jail", runs_s / bare, "")
        for at_once in AT_ONCE:
            waits = asyncio.run(_waits(backend, at_once))
            result.add(f"{backend}, {at_once} at once, p50", 1e3 * waits[len(waits) // 2], "ms")
            result.add(
                f"{backend}, {at_once} at once, p99", 1e3 * waits[99 * len(waits) // 100], "ms"
            )
    result.add("no jail: python -I -S -c, two at once", bare, "runs/s")
    result.notes.append(f"{RUNS} runs of {PROGRAM!r}, {TIMES} times, medians")
    return result


async def _throughput(backend: str) -> float:
    """Return runs a second of two zygotes that are warm."""
    jail = ZygotePool(backend, width=2)
    try:
        await asyncio.gather(*(_timed(jail) for _ in range(2)))
        start = time.perf_counter()
        await asyncio.gather(*(_timed(jail) for _ in range(RUNS)))
        return RUNS / (time.perf_counter() - start)
    finally:
        await jail.close()


async def _waits(backend: str, at_once: int) -> list[float]:
    """Return the sorted seconds of runs, with so many at the same time."""
    jail = ZygotePool(backend, width=at_once)
    try:
        await asyncio.gather(*(_timed(jail) for _ in range(at_once)))
        waits: list[float] = []

        async def one_after_the_other() -> None:
            for _ in range(max(4, RUNS // at_once)):
                waits.append(await _timed(jail))

        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
        return sorted(waits)
    finally:
        await jail.close()


async def _timed(jail: ZygotePool) -> float:
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
