"""Zygotes of one back end, as many as run at once."""

import asyncio
import logging

from banyan.programs.run import Outcome, Result, Run
from services.verifier.jail.zygote import Zygote, ZygoteLost
from services.verifier.sandbox.closing import Closing

log = logging.getLogger(__name__)
_MOST_RUNS = 10_000  # of one zygote, so that nothing in it grows without end


class ZygotePool:
    """A jail of zygotes.

    backend: "process" or "namespaces".
    width: programs that run at once.
    """

    def __init__(self, backend: str, *, width: int = 2) -> None:
        self._backend = backend
        self._turns = asyncio.Semaphore(width)
        self._idle: list[Zygote] = []
        self._closing = Closing()
        self._closed = False
        self.version = backend

    async def check(self) -> None:
        """Start the first zygote. Raises OSError where the machine does not allow the back end."""
        zygote = await Zygote.start(self._backend)
        self.version = f"{self._backend} ({zygote.rules})"
        self._idle.append(zygote)

    async def run(self, run: Run) -> Result:
        """Run a program; a lost runner is tried once more, in another zygote."""
        async with self._turns:
            for attempt in (1, 2):
                try:
                    result = await self._attempt(run)
                except ZygoteLost as error:
                    log.warning("jail %s, attempt %d: %s", self._backend, attempt, error)
                    result = Result(Outcome.LOST, stderr=str(error).encode())
                if result.outcome.is_programs:
                    break
        return result

    async def _attempt(self, run: Run) -> Result:
        zygote = self._idle.pop() if self._idle else await self._start()
        try:
            return await zygote.run(run)
        finally:
            if zygote.spent or zygote.runs >= _MOST_RUNS or self._closed:
                self._closing.end(zygote)
            else:
                self._idle.append(zygote)

    async def _start(self) -> Zygote:
        try:
            return await Zygote.start(self._backend)
        except OSError as error:
            raise ZygoteLost(str(error)) from error

    async def close(self) -> None:
        """End all zygotes; busy ones end with their run."""
        self._closed = True
        while self._idle:
            self._closing.end(self._idle.pop())
        await self._closing.all()
