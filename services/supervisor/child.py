"""One child process in a session of its own, that dies with its parent and logs to a file."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.chassis.process.parent_death import PARENT_VARIABLE

BAD_INPUT = 2  # exit status of a process that was told something wrong
_REMEMBERED = 64  # exits


@dataclass(eq=False)
class Child:
    """A process that the supervisor keeps: how to start it, and what became of it."""

    name: str  # unique, and the name of its log file
    service: str
    command: Sequence[str]
    env: dict[str, str]
    log: Path
    run_id: str = ""
    replica: int = 0
    # host:port of its gRPC health service, or nats://host:port; empty for one that cannot be asked
    health: str = ""
    creds: str = ""  # file with what the broker asks of a client
    process: asyncio.subprocess.Process | None = None
    exits: list[float] = field(default_factory=list)
    state: str = "new"  # starting, ready, waiting, stopped, given up
    last_status: int = 0
    bad_inputs: int = 0  # exits in a row that said that its input is wrong
    fruitless: int = 0  # exits in a row between which its run got nowhere
    _progress: tuple[int, ...] = ()

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Starts it. In a session of its own, Ctrl-C reaches the supervisor alone."""
        env = {**os.environ, **self.env, PARENT_VARIABLE: str(os.getpid())}
        with self.log.open("ab") as out:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
                start_new_session=True,
            )
        self.state = "starting"

    async def wait(self) -> int:
        """Waits until it ends; its exit status, negative for a signal."""
        assert self.process is not None
        status = await self.process.wait()
        self.ended(status)
        return status

    def ended(self, status: int) -> None:
        """Notes an exit."""
        self.exits = [*self.exits[-_REMEMBERED:], time.monotonic()]
        self.last_status = status
        self.bad_inputs = self.bad_inputs + 1 if status == BAD_INPUT else 0

    def note_progress(self, progress: tuple[int, ...] | None) -> None:
        """Takes how far its run was at this exit; None where nobody knows."""
        if progress is not None:
            self.fruitless = self.fruitless + 1 if progress == self._progress else 1
            self._progress = progress

    async def stop(self, grace_s: float) -> None:
        """Ends it for good."""
        await self.end(grace_s)
        self.state = "stopped"

    async def end(self, grace_s: float) -> None:
        """Sends SIGTERM, then SIGKILL after `grace_s`, which ends a process that is stopped (SIGSTOP) as well."""
        if not self.running:
            return
        assert self.process is not None
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.process.wait()

    def signal(self, number: int) -> None:
        """Sends a signal; nothing happens if it is gone."""
        if self.running and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def note(self, words: str) -> None:
        """Writes a line into its log, as its last words: it cannot say any more itself."""
        with contextlib.suppress(OSError), self.log.open("a") as out:
            out.write(f"{self.service}: {words}\n")

    def last_words(self) -> str:
        """Why it ended, as it said itself in its last line (process.main); empty where something ended it."""
        last = self.tail(1).strip()
        return f": {last.partition(': ')[2]}" if last.startswith(f"{self.service}: ") else ""

    def tail(self, lines: int = 6) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as handle:
                handle.seek(max(0, os.fstat(handle.fileno()).st_size - 4096))
                return "\n".join(handle.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""
