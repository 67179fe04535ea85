"""A child process in a session of its own, which dies with its parent and logs to a file."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.chassis.process.parent_death import PARENT_VARIABLE
from services.supervisor.adopted import Adopted

BAD_INPUT = 2  # exit status for wrong settings or arguments
_REMEMBERED = 64  # exits


@dataclass(eq=False)
class Child:
    """A process that the supervisor keeps: how to start it, and its history.

    name: unique; also the name of its log file.
    service: name of the service.
    command: arguments, the program first.
    env: environment beside the supervisor's.
    log: log file.
    run_id: its run; empty for a service of all runs.
    replica: number among the processes of its kind in the run.
    health: host:port of its gRPC health service, or nats://host:port; empty if it cannot be probed.
    creds: credentials file for the broker.
    tls: PEM file of the only certificate to trust for the broker, and its name.
    warm: it may be forked from a process that has imported torch.
    process: the running or last process.
    exits: monotonic times of its last exits.
    state: new, starting, ready, waiting, stopped or given up.
    last_status: exit status, negative for a signal.
    bad_inputs: exits in a row that reported a wrong input.
    fruitless: exits in a row between which its run made no progress.
    """

    name: str
    service: str
    command: Sequence[str]
    env: dict[str, str]
    log: Path
    run_id: str = ""
    replica: int = 0
    health: str = ""
    creds: str = ""
    tls: tuple[str, str] = ("", "")
    warm: bool = False
    process: asyncio.subprocess.Process | Adopted | None = None
    exits: list[float] = field(default_factory=list)
    state: str = "new"
    last_status: int = 0
    bad_inputs: int = 0
    fruitless: int = 0
    _progress: tuple[int, ...] = ()

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start the process. In a session of its own, Ctrl-C reaches the supervisor alone.

        Raise OSError.
        """
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

    def started_as(self, process: Adopted) -> None:
        """Take a process that was started from its command and environment."""
        self.process, self.state = process, "starting"

    async def wait(self) -> int:
        """Wait for its end; return its exit status, negative for a signal."""
        assert self.process is not None
        status = await self.process.wait()
        self.record_exit(status)
        return status

    def record_exit(self, status: int) -> None:
        """Record an exit."""
        self.exits = [*self.exits[-_REMEMBERED:], time.monotonic()]
        self.last_status = status
        self.bad_inputs = self.bad_inputs + 1 if status == BAD_INPUT else 0

    def record_progress(self, progress: tuple[int, ...] | None) -> None:
        """Record the progress of its run at this exit; None if it is unknown."""
        if progress is not None:
            self.fruitless = self.fruitless + 1 if progress == self._progress else 1
            self._progress = progress

    async def stop(self, grace_s: float) -> None:
        """End it for good."""
        await self.end(grace_s)
        self.state = "stopped"

    async def end(self, grace_s: float) -> None:
        """Send SIGTERM, then SIGKILL after `grace_s`, which ends even a stopped process."""
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
        """Send a signal, unless it has ended."""
        if self.running and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def append_to_log(self, words: str) -> None:
        """Append a line to its log as its last words, which it cannot write any more itself."""
        with contextlib.suppress(OSError), self.log.open("a") as out:
            out.write(f"{self.service}: {words}\n")

    def last_words(self) -> str:
        """Return why it ended, from the last line of its log (process.main).

        Empty if it was ended from outside.
        """
        last = self.tail(1).strip()
        return f": {last.partition(': ')[2]}" if last.startswith(f"{self.service}: ") else ""

    def tail(self, lines: int = 6) -> str:
        """Return the last lines of its log."""
        try:
            with self.log.open("rb") as handle:
                handle.seek(max(0, os.fstat(handle.fileno()).st_size - 4096))
                return "\n".join(handle.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""
