"""The parent's end of a warm child: start it, request scores with a deadline, end it."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from banyan.digest import canonical
from banyan.errors import InvalidInput, TemporaryError
from banyan.reasons import Reason
from banyan.recipe.hub_dataset import is_hub_dataset
from banyan.runtime import torch_environment
from banyan.runtime.launch import OURS_ISOLATED
from services.verifier.sandbox import frames, interpreters
from services.verifier.sandbox.allowed import grants
from services.verifier.sandbox.confinement import folders, hub_cache
from services.verifier.sandbox.confinement.launch import launch
from services.verifier.sandbox.limits import ROUNDS, Limits
from services.verifier.sandbox.outcomes import plain

log = logging.getLogger(__name__)
START_S = 60.0  # importing the scorer; sympy alone takes seconds on a busy machine
_VERSION_CHARACTERS = 128
_LONG = 1 << 15  # characters of a completion whose frame is packed beside the event loop
_LATE_S = 1.0  # to read an answer that is there at the deadline
_GRACE_S = 5.0  # beyond the deadline, for the child to kill the score and report that


@dataclass(frozen=True)
class ScorerSpec:
    """A scorer of a recipe.

    group: it scores all completions of a group together.
    withheld: files of the task that its process may not read; it gets the row of its completion.
    unconfined: score even if the machine cannot confine a score.
    deadline_s: wall-clock time of a score; None for the verifier's own, as with the next two.
    memory_mb: memory of a score.
    concurrency: its scores at once in one verifier.
    network: it may use the network where the verifier allows that.
    secrets: environment variables of the verifier that it gets where the verifier allows that.
    environment: it is a class that answers actions, and no scorer.
    deterministic: refuse an environment that does not say that it is.
    readable: files and folders that may be read beside the interpreter and the module's folder.
    python: interpreter of the child; empty for the verifier's own.
    external: tools of it that may change something outside.
    processes: it may start programs, whatever it is.
    """

    name: str
    settings: Mapping[str, Any]
    group: bool = False
    withheld: tuple[str, ...] = ()
    unconfined: bool = False
    deadline_s: float | None = None
    memory_mb: int | None = None
    concurrency: int | None = None
    network: bool = False
    secrets: tuple[str, ...] = ()
    environment: bool = False
    deterministic: bool = False
    readable: tuple[str, ...] = ()
    python: str = ""
    external: tuple[str, ...] = ()
    processes: bool = False

    @property
    def label(self) -> str:
        """Kind and name, for messages."""
        return f"{'environment' if self.environment else 'scorer'} {self.name!r}"

    @cached_property
    def key(self) -> bytes:
        """Key that is equal for equal specs; cached, because each score needs it."""
        limits = [self.deadline_s, self.memory_mb, self.concurrency]
        confinement = [self.group, list(self.withheld), self.unconfined]
        grants = [self.network, list(self.secrets)]
        child = [self.environment, self.deterministic, list(self.readable), self.python]
        child += [list(self.external), self.processes]
        return canonical([self.name, dict(self.settings), *confinement, *limits, *grants, *child])


class ChildDied(TemporaryError):
    """A child that ended or hung without an answer; another child may give it."""

    reason = Reason.CHILD_DIED


class NotStarted(ChildDied):
    """A child that ended before it imported anything of a user: the fault is not a scorer's."""


class Worker:
    """A warm child that scores one completion, or one group, at a time."""

    def __init__(self, process: asyncio.subprocess.Process, folder: str, limits: Limits) -> None:
        self._process, self._folder, self._limits = process, folder, limits
        self.version = ""
        self.wrong = 0.0  # value of a wrong answer
        self.apart = True  # the kernel counts its scores' processes apart from all others
        self.spent = False  # it must be ended
        self.calls = 0

    @classmethod
    async def start(
        cls, spec: ScorerSpec, limits: Limits, row: Mapping[str, Any] | None = None
    ) -> "Worker":
        """Start a child that imports the scorer.

        Raise InvalidInput if the import fails, ChildDied if the child cannot run, NotStarted if it
        does not come as far as the import. With a row, also
        raise InvalidInput if the scorer cannot be called with such a row; it is not called.
        """
        secrets = grants.secrets(spec.label, spec.secrets, limits.secrets)
        # Attempts of any user must be able to enter their own folder below it.
        with folders.made(folders.SCORER) as folder:
            worker = cls(await _launch(folder, spec.python), folder, limits)
        limits = replace(
            limits,
            readable=(*limits.readable, *spec.readable),
            withheld=(*limits.withheld, *_locations(spec.withheld)),
            unconfined=limits.unconfined or spec.unconfined,
        )
        opening = {
            "name": spec.name,
            "settings": dict(spec.settings),
            "group": spec.group,
            "environment": spec.environment,
            "deterministic": spec.deterministic,
            "external": list(spec.external),
            "row": None if row is None else dict(row),
            "path": sys.path if not spec.python else interpreters.users_path(),
            "secrets": secrets,
            "limits": asdict(limits),
        }
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(worker.close)
            await worker._greeted(spec.python)
            ready = await worker._request(opening, START_S)
            if "refused" in ready:
                raise InvalidInput(f"{spec.label} cannot be loaded: {ready['refused']}")
            undo.pop_all()
        worker.version = plain(str(ready["version"]), _VERSION_CHARACTERS)
        worker.wrong = float(ready["wrong"])
        worker.apart = bool(ready["apart"])
        for notice in ready["notices"]:
            log.warning("scorer %s: %s", spec.name, notice)
        return worker

    async def score(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the child's answer to {completion or completions, row}, or how the score ended.

        Raise ChildDied, after which this worker must be closed.
        """
        self.calls += 1
        answer = await self._request(dict(request), ROUNDS * self._limits.deadline_s + _GRACE_S)
        self.spent = bool(answer.get("spent"))
        return answer

    async def _greeted(self, python: str) -> None:
        """Wait until the child has imported what is ours. Raise NotStarted if it cannot."""
        try:
            await self._answer(b"", START_S)
        except ChildDied as error:
            raise NotStarted(
                f"{error} before it read any code of yours: {interpreters.found(python)} cannot"
                f" import Banyan's own modules as it should, and says why above; {_remedy(python)}"
            ) from None

    async def _request(self, message: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        if len(message.get("completion") or "") < _LONG:
            frame = frames.pack(message)
        else:  # a moment each, but several that come together would hold up the event loop
            frame = await asyncio.to_thread(frames.pack, message)
        return await self._answer(frame, deadline_s)

    async def _answer(self, frame: bytes, deadline_s: float) -> dict[str, Any]:
        """Return the next answer, to a frame or of itself. Raise ChildDied if there is none."""
        exchange = asyncio.create_task(self._exchange(frame))
        try:
            # A process that stood still has time to read the answer that waited for it: of an
            # effect outside there is no other.
            for limit_s in (deadline_s, _LATE_S):
                if (await asyncio.wait({exchange}, timeout=limit_s))[0]:
                    return exchange.result()
            raise ChildDied(f"the child gave no answer in {deadline_s:.0f} s")
        except (asyncio.IncompleteReadError, OSError):
            # The pipe closes a moment before the status is known.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._process.wait()
            raise ChildDied(f"the child ended with status {self._process.returncode}") from None
        finally:
            exchange.cancel()

    async def _exchange(self, frame: bytes) -> dict[str, Any]:
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None and reader is not None
        writer.write(frame)
        await writer.drain()
        header = await reader.readexactly(frames.HEADER.size)
        (size,) = frames.HEADER.unpack(header)
        return frames.parse(await reader.readexactly(frames.checked(size)))

    async def close(self) -> None:
        """End the child and its scores, which its guard kills once our end of the pipe closes."""
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


def _remedy(python: str) -> str:
    return "it needs Python 3.11" if python else "install Banyan again"


def _locations(paths: Iterable[str]) -> Iterator[str]:
    """Yield the places of these files: as named, or in a folder of the module search path.

    Those of a data set of the hub are the folders of the hub's caches, as this process has them.
    """
    for path in paths:
        if is_hub_dataset(path):
            yield from hub_cache.folders()
            continue
        for base in dict.fromkeys(("", *sys.path)):
            location = os.path.abspath(os.path.join(base, os.path.expanduser(path)))
            if os.path.exists(location):
                yield location


async def _launch(folder: str, python: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await launch(
        interpreters.found(python),
        *OURS_ISOLATED[1:],
        "services.verifier.sandbox.child",
        stdin=pipe,
        stdout=pipe,
        cwd=folder,
        env=_environment(folder),
    )


def _environment(folder: str) -> dict[str, str]:
    """Return the variables that an interpreter needs: no addresses, credentials or settings.

    Sets of texts have the same order in each child, so that a class which iterates over one answers
    alike in all of them.
    """
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **torch_environment.SETTINGS,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
