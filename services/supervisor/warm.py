"""Processes of runs, forked from one that has imported torch and all that they need (ADR 078)."""

import asyncio
import errno
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from banyan.errors import DeadlineMissed
from banyan.runtime.launch import OURS
from services.chassis.process import forking
from services.chassis.process.parent_death import PARENT_VARIABLE
from services.supervisor.adopted import Adopted, adopting
from services.supervisor.child import Child

log = logging.getLogger(__name__)

IMPORTED = (
    "services.learner.service",
    "services.rollout.node.node",
    "services.rollout.server",
    "services.rollout.engines.torch_engine.engine",
    "services.rollout.engines.torch_engine.loading",
)
Key = tuple[dict[str, str], set[int]]
"""Variables of a child that libraries may read, and cores that it may use."""
LOAD_S = 120.0
FORK_S = 5.0
_ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Devices whose libraries may be at work after an import, and then are of no use after a fork."""


def possible() -> bool:
    """Return True if processes can be forked here."""
    return sys.platform.startswith("linux") and not any(d.exists() for d in _ACCELERATORS)


class WarmProcess:
    """The process that has imported what processes of runs need, started when one is wanted.

    Torch reads its environment and its cores as it is imported, so others need another process; the
    last one is kept.
    """

    def __init__(self, log_file: Path) -> None:
        self._log = log_file
        self._key: Key | None = None  # of a process that has imported all
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._over = False

    @property
    def pid(self) -> int:
        """Its process id, 0 without one."""
        return self._process.pid if self._process is not None else 0

    async def start(self, child: Child) -> Adopted | None:
        """Start a child's process, whose parent is this one.

        Return None where that is not possible, or fails, which is logged. The child may then still
        be started by its command.
        """
        if not possible():
            return None
        try:
            with child.log.open("ab") as out:
                return await self._started(child, out)
        except OSError:  # a start by its command says so
            return None

    async def _started(self, child: Child, out: BinaryIO) -> Adopted | None:
        libraries = {n: v for n, v in child.env.items() if not n.startswith("BANYAN_")}
        key = libraries, os.sched_getaffinity(0)
        async with self._turn:
            if self._over:
                return None
            try:
                if not self._serves(key):
                    await self._forget()
                    await self._load(key)
                return self._fork(child, out)
            except (OSError, DeadlineMissed) as error:
                await self._forget()
                if not self._over:
                    log.warning("%s imports torch itself: %s; see %s", child.name, error, self._log)
                return None

    def _serves(self, key: Key) -> bool:
        if self._requests is None or self._key != key:
            return False
        news = select.poll()
        news.register(self._requests, select.POLLIN)
        return not news.poll(0)  # it says nothing unasked

    async def _load(self, key: Key) -> None:
        """Start the process, and wait until it has imported all. Raise OSError, DeadlineMissed."""
        environ = {**os.environ, **key[0], PARENT_VARIABLE: str(os.getpid())}
        self._key = None
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("ab") as out:
            self._process = subprocess.Popen(
                (*OURS, "services.chassis.process.forking", *IMPORTED),
                stdin=theirs.fileno(),
                stdout=out,
                stderr=out,
                env=environ,
                start_new_session=True,
            )
        self._requests.setblocking(False)
        try:
            async with asyncio.timeout(LOAD_S):
                answer = await asyncio.get_running_loop().sock_recv(self._requests, 64)
        except TimeoutError:
            raise DeadlineMissed(f"torch was not imported within {LOAD_S:.0f} s") from None
        if answer != forking.READY:
            raise ConnectionResetError("the process that imports it ended")
        self._key = key

    def _fork(self, child: Child, out: BinaryIO) -> Adopted:
        """Have a process forked. Raise OSError.

        Nothing is awaited between request and answer, so that no process is forgotten.
        """
        assert self._requests is not None
        environ = {**os.environ, **child.env, PARENT_VARIABLE: str(os.getpid())}
        request = json.dumps({"module": child.command[-1], "environ": environ}).encode()
        if len(request) > forking.MOST:
            raise OSError(errno.E2BIG, f"its environment has more than {forking.MOST} bytes")
        self._requests.settimeout(FORK_S)
        with adopting():
            socket.send_fds(self._requests, [request], [out.fileno()])
            process = int(self._answer() or 0)
            if not process:
                raise ConnectionResetError("no process was forked")
            if process < 0 or self._answer() != forking.BEGINS:
                raise ChildProcessError(f"the process forked did not begin, see {child.log}")
            return Adopted(process)

    def _answer(self) -> bytes:
        """Return what comes next; nothing if that is not in time, or the process has ended."""
        assert self._requests is not None
        try:
            return self._requests.recv(64)
        except TimeoutError:
            self.kill()  # so that it cannot answer later
        except ConnectionResetError:  # it had not read the request
            return b""
        with suppress(ConnectionResetError):
            return self._requests.recv(64)
        return b""

    def kill(self) -> None:
        """End it at once; what was forked from it goes on."""
        if self._process is not None:
            self._process.kill()

    async def end(self) -> None:
        """End it for good; what was forked from it goes on."""
        self._over = True
        self.kill()  # who waits for it waits no longer
        async with self._turn:
            await self._forget()

    async def _forget(self) -> None:
        self.kill()
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
            _reap(self._process.pid)
        self._process = self._requests = None


def _reap(group: int) -> None:
    """End and forget what an ended process was forking: it has no session of its own yet."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)
