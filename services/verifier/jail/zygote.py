"""The parent's end of a zygote: start it, run programs in it, end it."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from banyan.errors import TemporaryError
from banyan.programs.run import Outcome, Result, Run
from banyan.reasons import Reason
from services.verifier.jail import interpreter
from services.verifier.jail.inside.program import HEADER, MEMORY_STATUS
from services.verifier.jail.output import Output
from services.verifier.sandbox.confinement import folders
from services.verifier.sandbox.confinement.launch import launch

_START_S = 20.0
_GRACE_S = 5.0  # beyond the wall time, for the zygote to kill the run and report that
_PACKET = 1 << 16
_ROOT = str(Path(__file__).parents[3])
_MAIN = (
    # Last: without site packages nothing else has our names, and nothing there shadows a module
    # of the standard library.
    "import sys; sys.path.append(sys.argv[1]);"
    " from services.verifier.jail.inside.main import main; main(int(sys.argv[2]))"
)
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_BY_SIGNAL: dict[int, Outcome] = {signal.SIGXCPU: Outcome.CPU, signal.SIGXFSZ: Outcome.DISK}
_BY_STATUS = {0: Outcome.DONE, MEMORY_STATUS: Outcome.MEMORY}


class ZygoteLost(TemporaryError):
    """A zygote that ended or hung; another may run the program."""

    reason = Reason.CHILD_DIED


class Zygote:
    """A warm interpreter that runs one program at a time."""

    def __init__(
        self, process: asyncio.subprocess.Process, channel: socket.socket, folder: str
    ) -> None:
        self._process, self._channel, self._folder = process, channel, folder
        self.rules = ""
        self.runs = 0
        self.spent = False  # it must be ended

    @classmethod
    async def start(cls, backend: str) -> "Zygote":
        """Start a zygote of a back end: "process" or "namespaces".

        Raises OSError with the reason where the machine does not allow that.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with contextlib.ExitStack() as unlaunched:
            unlaunched.callback(ours.close)
            with theirs, folders.made(folders.JAIL) as folder:  # which other users' runs enter
                process = await _launch(folder, theirs)
            unlaunched.pop_all()
        zygote = cls(process, ours, folder)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(zygote.close)
            opening = {
                "backend": backend,
                "readable": interpreter.readable(),
                "listable": interpreter.listable(),
            }
            ours.send(json.dumps(opening).encode())
            ready = await zygote._answer(_START_S)
            if "refused" in ready:
                raise OSError(f"back end {backend} of the jail: {ready['refused']}")
            undo.pop_all()
        zygote.rules = str(ready["ready"])
        return zygote

    async def run(self, run: Run) -> Result:
        """Run a program. Raises ZygoteLost, after which this zygote must be closed."""
        self.spent = True  # unless it answers
        self.runs += 1
        with contextlib.ExitStack() as undo:
            outputs = [Output(run.limits.output_bytes, self._end_for_output) for _ in range(2)]
            for output in outputs:
                undo.callback(output.close)
            with _source(run) as source:
                streams = [source.fileno(), *(output.inner for output in outputs)]
                self._send(json.dumps(asdict(run.limits)).encode(), streams)
            for output in outputs:
                output.close_inner()
            report = await self._answer(run.limits.wall_s + _GRACE_S)
            if "refused" in report:
                raise ZygoteLost(f"a run could not be started: {report['refused']}")
            stdout, stderr = (output.rest() for output in outputs)
            exceeded = any(output.exceeded for output in outputs)
        self.spent = not report["clean"]
        return Result(
            outcome=_outcome(report, exceeded),
            status=report["status"],
            stdout=stdout,
            stderr=stderr,
            cpu_s=report["cpu_s"],
            wall_s=report["wall_s"],
        )

    def _send(self, packet: bytes, streams: Sequence[int]) -> None:
        try:
            socket.send_fds(self._channel, [packet], streams)
        except OSError as error:
            raise ZygoteLost(f"a zygote was lost: {error}") from None

    def _end_for_output(self) -> None:
        with contextlib.suppress(OSError):  # it has ended by itself
            self._channel.send(Outcome.OUTPUT.encode())

    async def _answer(self, deadline_s: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline_s):
                packet = await loop.sock_recv(self._channel, _PACKET)
        except TimeoutError:
            raise ZygoteLost(f"a zygote gave no answer in {deadline_s:.0f} s") from None
        except OSError as error:
            raise ZygoteLost(f"a zygote was lost: {error}") from None
        if not packet:
            raise ZygoteLost("a zygote ended without an answer")
        answer: dict[str, Any] = json.loads(packet)
        return answer

    async def close(self) -> None:
        """End the zygote, its run and its folder."""
        self._channel.close()
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        folders.remove(self._folder)


async def _launch(folder: str, channel: socket.socket) -> asyncio.subprocess.Process:
    return await launch(
        getattr(sys, "_base_executable", sys.executable),
        *("-I", "-S", "-B", "-X", "utf8", "-c", _MAIN, _ROOT, str(channel.fileno())),
        cwd=folder,
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        pass_fds=(channel.fileno(),),
    )


def _source(run: Run) -> IO[bytes]:
    """Return a sealed file in memory that holds the program and its input."""
    program = run.program.encode("utf-8", "surrogatepass")
    handle = os.memfd_create("run", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    file = os.fdopen(handle, "w+b", buffering=0)
    file.write(HEADER.pack(len(program)) + program + run.stdin)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS)
    file.seek(0)
    return file


def _outcome(report: dict[str, Any], exceeded: bool) -> Outcome:
    if exceeded:
        return Outcome.OUTPUT
    if report["cause"]:
        return Outcome(report["cause"])
    status = report["status"]
    if status == -signal.SIGKILL:  # neither by us nor by itself, as the filter refuses that
        return Outcome.LOST
    if status < 0:
        return _BY_SIGNAL.get(-status, Outcome.SIGNALLED)
    return _BY_STATUS.get(status, Outcome.EXITED)
