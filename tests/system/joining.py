"""The commands `banyan train --listen` and `banyan join` as processes, for the tests of joining."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from banyan.runtime import torch_environment

BANYAN = (sys.executable, "-m", "banyan.cli")
ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r" join (\S+) --token-file (\S+)")
_QUIET = {
    "OMP_NUM_THREADS": "1",
    **torch_environment.SETTINGS,
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass
class Command:
    """A process and the file of its output."""

    process: asyncio.subprocess.Process
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    async def says(
        self, pattern: str | re.Pattern[str], deadline_s: float = 120.0
    ) -> re.Match[str]:
        """Wait until the output matches."""
        end = time.monotonic() + deadline_s
        while (found := re.search(pattern, self.output)) is None:
            assert self.process.returncode is None, (
                f"it ended with {self.process.returncode}:\n{self.output}"
            )
            assert time.monotonic() < end, f"no {pattern!r} in {deadline_s} s:\n{self.output}"
            await asyncio.sleep(0.05)
        return found

    async def ends(self, deadline_s: float = 120.0) -> int:
        """Wait for the end and return the exit status."""
        try:
            return await asyncio.wait_for(self.process.wait(), deadline_s)
        except TimeoutError:
            raise AssertionError(f"it did not end within {deadline_s} s:\n{self.output}") from None

    async def elapsed(self, phase: str) -> float:
        """Return the time at which `banyan train` printed a phase, in its own seconds."""
        return float((await self.says(rf"\[ *([0-9.]+) s\] {phase}"))[1])

    def stop(self, number: int) -> None:
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def command(
    log: Path,
    *words: str,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
) -> AsyncIterator[Command]:
    """Run `banyan` with these arguments; it is killed when the block ends."""
    told = {**os.environ, **_QUIET, **(env or {})}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *prefix,
            *BANYAN,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=told,
            cwd=cwd,
        )
    try:
        yield Command(process, log)
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupt a process, so that a launcher can end its children; then kill it."""
    for number, patience_s in ((signal.SIGINT, 30.0), (signal.SIGKILL, 10.0)):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), patience_s)


@dataclass
class Training:
    """A `banyan train --listen` that waits for nodes."""

    command: Command
    state: Path
    run_id: str
    address: str
    token: str

    @property
    def database(self) -> Path:
        return self.state / "store.sqlite"

    def rows(self, query: str) -> list[Any]:
        """Return rows of the store, read beside it; none while it is being created."""
        db = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10.0)
        try:
            return db.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            db.close()

    def grown(self) -> dict[str, int]:
        """Return the number of trees that each node grew to the end."""
        query = "select grown_node, count(*) from trees where grown_node != '' group by grown_node"
        return dict(self.rows(query))

    def by_joined(self) -> int:
        """Return the number of trees from nodes that came by `banyan join`."""
        return sum(n for node, n in self.grown().items() if not node.startswith("rollout-"))

    async def ask(self, *words: str) -> Any:
        """Run a command on this state folder and return the JSON that it prints."""
        log = self.state / f"{words[0]}.out"
        async with command(log, *words, "--state", str(self.state), "--json") as asked:
            assert await asked.ends() == 0, asked.output
            return json.loads(asked.output)


@contextlib.asynccontextmanager
async def training(
    folder: Path, recipe: Mapping[str, Any], listen: str = "127.0.0.1:0"
) -> AsyncIterator[Training]:
    """Run `banyan train` of a recipe, and yield once it has printed how to join."""
    folder.mkdir(parents=True, exist_ok=True)
    file, state = folder / "recipe.yaml", folder / "state"
    file.write_text(yaml.safe_dump(dict(recipe)))
    async with command(
        folder / "train.out", "train", str(file), "--listen", listen, "--state", str(state)
    ) as made:
        address, token_file = (await made.says(_COMMAND)).groups()
        token = Path(token_file).read_text().strip()
        run_id = (await made.says(r"run (\S+):"))[1]
        yield Training(made, state, run_id, address, token)


@contextlib.asynccontextmanager
async def joined(run: Training, folder: Path, *words: str, **more: Any) -> AsyncIterator[Command]:
    """Run `banyan join` of a training, and yield once it is admitted."""
    folder.mkdir(parents=True, exist_ok=True)
    state = ("--state", str(folder / "node"))
    async with command(
        folder / "join.out", "join", run.address, "--token", run.token, *state, *words, **more
    ) as made:
        await made.says(r"joined run")
        yield made
