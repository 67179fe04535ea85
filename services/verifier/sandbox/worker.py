"""The parent's end of one warm child: starts it, asks it for scores with a deadline, kills it."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from banyan.digest import canonical
from banyan.errors import InvalidInput, TemporaryError
from banyan.reasons import Reason
from banyan.runtime import torch_environment
from services.verifier.sandbox import frames
from services.verifier.sandbox.confinement import folders
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.outcomes import plain

log = logging.getLogger(__name__)
START_S = 60.0  # importing the scorer; sympy alone takes seconds on a busy machine
_VERSION_CHARACTERS = 128
_GRACE_S = 5.0  # for the child to kill and report what the deadline ended


@dataclass(frozen=True)
class ScorerSpec:
    """Which scorer, with which settings."""

    name: str
    settings: Mapping[str, Any]
    group: bool = False  # it scores all completions of a group together
    withheld: tuple[
        str, ...
    ] = ()  # files of the task that the scorer's process may not read, beside its own row
    unconfined: bool = False  # whether to score where the machine cannot confine a score

    @cached_property
    def key(self) -> bytes:
        """Equal for equal specs. Made once: it is asked for at each score."""
        return canonical(
            [self.name, dict(self.settings), self.group, list(self.withheld), self.unconfined]
        )


class ChildDied(TemporaryError):
    """The child ended or hung without an answer; another one may give it."""

    reason = Reason.CHILD_DIED


class Worker:
    """A warm child that scores one completion, or one group, at a time."""

    def __init__(self, process: asyncio.subprocess.Process, folder: str, limits: Limits) -> None:
        self._process, self._folder, self._limits = process, folder, limits
        self.version = ""
        self.apart = True  # its scores' processes are counted apart from all others
        self.spent = False
        self.calls = 0

    @classmethod
    async def start(
        cls, spec: ScorerSpec, limits: Limits, row: Mapping[str, Any] | None = None
    ) -> "Worker":
        """A child that has imported the scorer. Raises InvalidInput if it cannot be, ChildDied if the child cannot run.

        With a row, a scorer that cannot be called with one like it is refused, too; it is not
        called.
        """
        folder = tempfile.mkdtemp(prefix="banyan-scorer-")
        os.chmod(folder, 0o711)  # attempts enter their own folder below it, whoever they run as
        worker = cls(await _launched(folder), folder, limits)
        told = {"name": spec.name, "settings": dict(spec.settings), "group": spec.group}
        limits = replace(
            limits,
            withheld=(*limits.withheld, *_found(spec.withheld)),
            unconfined=limits.unconfined or spec.unconfined,
        )
        opening = {
            **told,
            "row": None if row is None else dict(row),
            "path": sys.path,
            "limits": asdict(limits),
        }
        try:
            ready = await worker._ask(opening, START_S)
        except BaseException:
            await worker.close()
            raise
        if "refused" in ready:
            await worker.close()
            raise InvalidInput(f"scorer {spec.name!r} cannot be loaded: {ready['refused']}")
        worker.version = plain(str(ready["version"]), _VERSION_CHARACTERS)
        worker.apart = bool(ready["apart"])
        for notice in ready["notices"]:
            log.warning("scorer %s: %s", spec.name, notice)
        return worker

    async def score(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The child's answer to {completion or completions, row}. Raises ChildDied, after which this worker is of no more
        use."""
        self.calls += 1
        answer = await self._ask(dict(request), self._limits.deadline_s + _GRACE_S)
        self.spent = bool(answer.get("spent"))
        if "died" in answer:
            raise ChildDied(f"the scoring process ended with {answer['died']}")
        return answer

    async def _ask(self, message: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        frame = frames.pack(message)
        try:
            async with asyncio.timeout(deadline_s):
                return await self._exchange(frame)
        except TimeoutError:
            raise ChildDied(f"the scorer's child gave no answer in {deadline_s:.0f} s") from None
        except (asyncio.IncompleteReadError, OSError):
            with contextlib.suppress(
                TimeoutError
            ):  # its pipe closes a moment before its status is known
                async with asyncio.timeout(1.0):
                    await self._process.wait()
            raise ChildDied(
                f"the scorer's child ended with status {self._process.returncode}"
            ) from None

    async def _exchange(self, frame: bytes) -> dict[str, Any]:
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None and reader is not None
        writer.write(frame)
        await writer.drain()
        header = await reader.readexactly(frames.HEADER.size)
        return frames.parse(
            await reader.readexactly(frames.checked(frames.HEADER.unpack(header)[0]))
        )

    async def close(self) -> None:
        """End the child, and with it what it was scoring: its guard kills all of it once our end of the pipe is closed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not await self._ended(_GRACE_S):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._ended(_GRACE_S)
        await asyncio.to_thread(folders.remove, self._folder)

    async def _ended(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._process.wait()
        return self._process.returncode is not None


def _found(paths: Iterable[str]) -> Iterator[str]:
    """Where these files lie: as they are named, or in a folder in which modules are looked for."""
    for path in paths:
        for base in dict.fromkeys(("", *sys.path)):
            if os.path.exists(at := os.path.abspath(os.path.join(base, os.path.expanduser(path)))):
                yield at


async def _launched(folder: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-I", "-m", "services.verifier.sandbox.child")
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=pipe,
        stdout=pipe,
        cwd=folder,
        env=_environment(folder),
        start_new_session=True,
    )


def _environment(folder: str) -> dict[str, str]:
    """Only what an interpreter needs: no addresses, no credentials, no settings of the service."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **torch_environment.SETTINGS}
    plain = {
        "PATH": "/usr/bin:/bin",
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
    }
    return {**plain, **threads, "PYTHONDONTWRITEBYTECODE": "1"}
