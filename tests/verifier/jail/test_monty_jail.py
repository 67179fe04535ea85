"""Programs in the jail of sessions, its battery, and the battery against no jail at all."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from banyan.errors import InvalidInput
from banyan.programs.run import Limits, Outcome, Result, Run
from services.verifier.jail.battery import language, snippets
from services.verifier.jail.monty import Sessions
from services.verifier.jail.monty_jail import MontyJail, proven
from tests.verifier import jail_process

pytestmark = pytest.mark.slow  # many processes

REPOSITORY = Path(__file__).parents[3]
ROOT = os.geteuid() == 0
# Programs share their variables and modules; the last one's output counts.
OPEN = """
import contextlib, io, json, sys
runs = json.load(sys.stdin)
lines = []
def input(): return lines.pop()
shared = {"input": input}
for program, line in runs:
    lines.append(line)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, shared)
print(out.getvalue())
"""


class NoJail:
    """Python with all of its doors open, and all that was run before."""

    version = "none"

    def __init__(self) -> None:
        self._runs: list[tuple[str, str]] = []

    async def run(self, run: Run) -> Result:
        """Run a program behind those before it, kept from files that are not the battery's."""
        if not run.stdin:  # a bomb, which would go off here
            return Result(Outcome.DONE)
        trap = json.loads(run.stdin)
        trap["writable"] = [path for path in trap["writable"] if "battery" in path]
        self._runs.append((run.program, json.dumps(trap)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OPEN),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        stdout, stderr = await process.communicate(json.dumps(self._runs).encode())
        assert process.returncode == 0, stderr.decode()
        return Result(Outcome.DONE, 0, stdout, stderr)

    async def close(self) -> None:
        """Do nothing."""


class Endless:
    """A jail without limits, as far as its results say."""

    version = "none"

    async def run(self, run: Run) -> Result:
        """Return all that a program could have written."""
        return Result(Outcome.DONE, 0, b"took 1\n" * 1000)

    async def close(self) -> None:
        """Do nothing."""


@pytest_asyncio.fixture
async def jail() -> AsyncIterator[MontyJail]:
    """A jail of two workers."""
    jail = MontyJail(await Sessions.start())
    yield jail
    await jail.close()


async def test_there_is_no_hole(jail: MontyJail) -> None:
    assert await language.holes(jail) == []


@pytest.mark.parametrize("user", [False, True] if ROOT else [False])
def test_a_proven_jail_has_no_hole_as_this_user_and_as_another(user: bool) -> None:
    found = jail_process.holes({"backend": "monty", "user": user})
    assert found["refused"] == "" and found["holes"] == []
    assert found["version"] == "monty 1.4.0 (landlock, seccomp)"


@pytest.mark.parametrize("name", ["files", "modules", "system", "objects", "finds"])
async def test_each_probe_sees_an_open_door(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_ATTEMPTS", ("leaves", name))
    monkeypatch.setattr(language, "_BOMBS", ())
    found = await language.holes(NoJail())
    probes = re.findall(r"tried\('(.+?)'", snippets.PROGRAMS[name])
    assert len(probes) > 1
    for probe in probes:
        assert any(hole.startswith(f"{name}: {probe}") for hole in found), (probe, found)


async def test_clock_traps_and_modules_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_ATTEMPTS", ("leaves", "files", "clock", "finds"))
    monkeypatch.setattr(language, "_BOMBS", ())
    found = await language.holes(NoJail())
    assert "clock: the clock of the machine" in found
    assert "clock: how long something takes" in found
    assert "finds: a changed module" in found
    assert any(hole.endswith("rows.jsonl was changed") for hole in found)
    assert "rows.jsonl.made was made" in found
    names = re.search(r"names = \[(.+?)\]", snippets.MODULES, re.DOTALL)
    assert names and names[1].count(",") == 20


async def test_a_jail_without_limits_fails_every_bomb() -> None:
    found = await language.holes(Endless())
    assert sum(hole.startswith("bomb ") for hole in found) == len(snippets.BOMBS)
    assert any(hole.startswith("memory: 1000 MB") for hole in found)
    assert any(hole.startswith("output: ") for hole in found)


PROGRAMS = {
    "print(input('? ') + input())": (b"? abcd\n", Outcome.DONE, 0),
    "n = 0\ntry:\n  while True:\n    input()\n    n += 1\nexcept EOFError: print(n)": (
        *(b"3\n", Outcome.DONE),
        0,
    ),
    "for _ in range(4): input()": (b"", Outcome.EXITED, 1),
    "1/0": (b"", Outcome.EXITED, 1),
    "while True: pass": (b"", Outcome.CPU, -9),
}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_reads_its_input_and_ends_as_it_ends(jail: MontyJail, program: str) -> None:
    stdout, outcome, status = PROGRAMS[program]
    limits = Limits(cpu_s=0.2)
    result = await jail.run(Run(program, "ab\ncd\né".encode(), limits))
    assert (result.stdout, result.outcome, result.status) == (stdout, outcome, status)
    assert await jail.run(Run("print(1)", limits=limits)) is not None


async def test_a_proof_is_kept_and_a_jail_with_a_hole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    passes = []

    async def count(jail: MontyJail) -> list[str]:
        passes.append(jail.version)
        return found

    monkeypatch.setattr(language, "holes", count)
    for _ in range(2):
        await (await proven(tmp_path, key=b"key")).close()
    assert len(passes) == 1
    (tmp_path / "jail_proofs.json").unlink()
    found.append("files: read /etc/passwd")
    with pytest.raises(InvalidInput, match=r"sessions of monty: .* files: read /etc/passwd"):
        await proven(tmp_path)
