"""One pass of the battery over a back end: its holes, each in words."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from banyan.programs.run import THREADS, Limits, Outcome, Result, Run
from services.verifier.jail.battery import exhaust, reach
from services.verifier.jail.battery.traps import Traps
from services.verifier.jail.port import Jail
from services.verifier.sandbox.limits import threads_of

# A sound jail ends what waits, so only a busy machine needs the wall time.
_LIMITS = Limits(wall_s=20.0, cpu_s=1.0, memory_mb=48, disk_mb=4, files=32, processes=0)
_WITH_PROCESSES = replace(_LIMITS, processes=4)
_TOLD = {
    "memory_mb": _LIMITS.memory_mb,
    "disk_mb": _LIMITS.disk_mb,
    "most_files": _LIMITS.files,
    "most_processes": _WITH_PROCESSES.processes + THREADS,
}
# Without a limit of the sum five processes take five times as much. Of the sum of what was ever
# taken a part may be free again, as processes are ended one by one.
_MOST_TAKEN_MB = 4 * _LIMITS.memory_mb
_SOURCES = {
    name: Path(str(module.__file__)).read_text()
    for module in (reach, exhaust)
    for name in module.ATTEMPTS
}
# In this order: `finds` looks for what `leaves` left.
_ATTEMPTS = tuple(_SOURCES)
_WITH_CHILDREN = ("memory", "processes", "daemon")


async def holes(jail: Jail) -> list[str]:
    """Return what programs got, or what they left; a sound back end has none."""
    traps = Traps(_TOLD | {"room": _room()})
    try:
        found: list[str] = []
        for name in _ATTEMPTS:
            for limits in (_LIMITS, _WITH_PROCESSES) if name in _WITH_CHILDREN else (_LIMITS,):
                found += await _attempt(jail, name, limits, traps)
        return [*found, *traps.sprung()]
    finally:
        traps.close()


def _room() -> int:
    """Return how many other threads of the runs' user may end meanwhile, of many a part.

    Runs of root's have users of their own.
    """
    return min(threads_of(os.getuid()), 2 * _TOLD["most_processes"]) if os.geteuid() else 0


async def _attempt(jail: Jail, name: str, limits: Limits, traps: Traps) -> list[str]:
    program = f"{_SOURCES[name]}\nmain({name!r})\n"
    result = await jail.run(Run(program, json.dumps(traps.message).encode(), limits))
    return [f"{name}: {hole}" for hole in _JUDGES.get(name, _silent)(result)]


def _silent(result: Result) -> Iterator[str]:
    """Yield what a program got; it must have ended by itself."""
    if result.outcome is not Outcome.DONE:
        yield f"it ended {result.outcome} {_last(result)}"
    yield from _lines(result)


def _limited(result: Result) -> Iterator[str]:
    """Yield what a program got that may be ended for what it does."""
    if result.outcome in (Outcome.LOST, Outcome.WALL, Outcome.EXITED):
        yield f"it ended {result.outcome} {_last(result)}"
    yield from _lines(result)


def _took(result: Result) -> Iterator[str]:
    taken = sum(4 for line in _lines(result) if line == "took 4")
    if taken > _MOST_TAKEN_MB:
        yield f"{taken} MB in sum"
    if not taken:
        yield f"nothing was tried: {result.outcome} {_last(result)}"


def _framed(result: Result) -> Iterator[str]:
    if (result.outcome, result.status) != (Outcome.EXITED, 3):
        yield f"a word of the program's was taken for the runner's: {result}"


def _lines(result: Result) -> list[str]:
    return result.stdout.decode(errors="replace").splitlines()


def _last(result: Result) -> str:
    return result.stderr[-200:].decode(errors="replace").strip()


_JUDGES: dict[str, Callable[[Result], Iterable[str]]] = {
    "memory": _took,
    "disk": _limited,
    "files": _limited,
    "processes": _limited,
    "frames": _framed,
}
