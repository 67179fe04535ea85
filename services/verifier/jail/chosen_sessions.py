"""The sessions of a verifier, made and proven when the first code comes."""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from banyan.errors import InvalidInput
from banyan.programs.session import SessionResult, Task

if TYPE_CHECKING:
    from services.verifier.jail.monty import Sessions

log = logging.getLogger(__name__)


class ChosenSessions:
    """Sessions that refuse all code where they are not sound.

    state: folder in which proofs are kept.
    key: seals the states of sessions, so that those of other systems are refused.
    width: runs at once.
    """

    def __init__(self, state: Path, key: bytes, *, width: int = 2) -> None:
        self._state, self._key, self._width = state, key, width
        self._sessions: Sessions | None = None
        self._refusal: InvalidInput | None = None
        self._start = asyncio.Lock()

    async def do(self, task: Task) -> SessionResult:
        """Do a run. Raises InvalidInput with the reason where sessions are not sound."""
        return await (await self._started()).do(task)

    async def _started(self) -> "Sessions":
        async with self._start:
            if self._refusal is not None:
                raise self._refusal
            if self._sessions is None:
                # Not before it is needed: the package comes with the verifier's extra alone.
                from services.verifier.jail.monty_jail import proven

                try:
                    self._sessions = await proven(self._state, width=self._width, key=self._key)
                except InvalidInput as error:
                    self._refusal = error
                    raise
                log.info("code runs in sessions of %s", self._sessions.version)
        return self._sessions

    async def close(self) -> None:
        """End all workers."""
        if self._sessions is not None:
            await self._sessions.close()
