"""`banyan observe` in a process of its own, as a person starts and ends it."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.command import ROOT

DEADLINE_S = 120.0


@dataclass
class Observing:
    """A running `banyan observe`.

    lines: what it printed, by the word at the beginning of the line
    """

    process: asyncio.subprocess.Process
    lines: dict[str, str] = field(default_factory=dict)

    def address(self, name: str) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.lines[name])
        assert found, self.lines
        return found[0]

    async def end(self, by: signal.Signals = signal.SIGINT) -> int:
        """End it as Ctrl-C does; return its exit status."""
        self.process.send_signal(by)
        async with asyncio.timeout(30):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def observing(state: Path, path: str = "", *options: str) -> AsyncIterator[Observing]:
    """Start it and yield it once it has printed all. path: PATH; empty for this process's."""
    command = [sys.executable, "-m", "banyan.cli", "observe", "--state", str(state), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path or os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    made = Observing(process)
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert process.stdout is not None
            while line := (await process.stdout.readline()).decode():
                made.lines[line[:10].strip() or "more"] = line[10:].strip()
                if line.startswith("end "):
                    break
        yield made
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
