"""One pass of the battery over a jail that is a language: its holes, each in words."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

from banyan.programs.run import Limits, Outcome, Result, Run
from services.verifier.jail.battery import snippets
from services.verifier.jail.battery.traps import Traps
from services.verifier.jail.port import Jail

# The wall time is long enough for a busy machine, on which nothing would be proven else.
_LIMITS = Limits(wall_s=20.0, cpu_s=0.2, memory_mb=24, output_bytes=8 << 10)
_OF_BOMBS = replace(_LIMITS, cpu_s=0.1)  # most of them take all of it
_ATTEMPTS = tuple(snippets.PROGRAMS)
_BOMBS = snippets.BOMBS
_MAY_END = (Outcome.CPU, Outcome.MEMORY)


async def holes(jail: Jail) -> list[str]:
    """Return what programs got, took or left; a sound jail has none."""
    traps = Traps({"memory_mb": _LIMITS.memory_mb})
    told = json.dumps(traps.message).encode() + b"\n"
    try:
        found: list[str] = []
        for name in _ATTEMPTS:
            result = await jail.run(Run(snippets.PROGRAMS[name], told, _LIMITS))
            judge = _took if name == "memory" else _silent
            found += [f"{name}: {hole}" for hole in judge(result)]
        bombs = (jail.run(Run(bomb, limits=_OF_BOMBS)) for bomb in _BOMBS)
        for bomb, result in zip(_BOMBS, await asyncio.gather(*bombs), strict=True):
            if result.outcome not in _MAY_END:
                found.append(f"bomb {bomb!r}: {_end(result)}")
        result = await jail.run(Run(snippets.OUTPUT, limits=_LIMITS))
        if result.outcome is not Outcome.OUTPUT or len(result.stdout) > _LIMITS.output_bytes:
            found.append(f"output: {len(result.stdout)} bytes, {_end(result)}")
        return [*found, *traps.sprung()]
    finally:
        traps.close()


def _silent(result: Result) -> Iterator[str]:
    """Yield what a program got; it must have ended by itself."""
    if result.outcome is not Outcome.DONE:
        yield _end(result)
    yield from result.stdout.decode(errors="replace").splitlines()


def _took(result: Result) -> Iterator[str]:
    taken = result.stdout.count(b"took 1")
    if result.outcome is not Outcome.MEMORY or not 0 < taken <= _LIMITS.memory_mb:
        yield f"{taken} MB, {_end(result)}"


def _end(result: Result) -> str:
    return f"it ended {result.outcome} {result.stderr[-200:].decode(errors='replace').strip()}"
