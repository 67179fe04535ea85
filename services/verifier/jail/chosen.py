"""The jail of a verifier, chosen and proven when the first program comes."""

import asyncio
import logging
from pathlib import Path

from banyan.errors import InvalidInput
from banyan.programs.run import Result, Run
from services.verifier.jail import select
from services.verifier.jail.port import Jail

log = logging.getLogger(__name__)
REQUIRED = "required"


class ChosenJail:
    """A jail that refuses every program where no back end is sound.

    state: folder in which proofs are kept.
    sandbox: "required" for the strongest back end that the machine allows, or its name.
    width: programs that run at once.
    """

    def __init__(self, state: Path, *, sandbox: str = REQUIRED, width: int = 2) -> None:
        self._state, self._width = state, width
        self._backends = select.BACKENDS if sandbox == REQUIRED else (sandbox,)
        self._chosen: Jail | None = None
        self._refusal: InvalidInput | None = None
        self._choice = asyncio.Lock()
        unknown = set(self._backends) - set(select.BACKENDS)
        if unknown:
            raise InvalidInput(
                f"BANYAN_SANDBOX must be {REQUIRED} or one of {', '.join(select.BACKENDS)}, got"
                f" {sandbox!r}"
            )

    @property
    def version(self) -> str:
        """Back end and rules; empty before the first program."""
        return self._chosen.version if self._chosen else ""

    async def run(self, run: Run) -> Result:
        """Run a program. Raises InvalidInput with the reasons where no back end is sound."""
        return await (await self.choose()).run(run)

    async def choose(self) -> Jail:
        """Return the jail, chosen once. Raises InvalidInput likewise."""
        async with self._choice:
            if self._refusal is not None:
                raise self._refusal
            if self._chosen is None:
                try:
                    self._chosen = await select.choose(
                        self._state, width=self._width, backends=self._backends
                    )
                except InvalidInput as error:
                    self._refusal = error
                    raise
                log.info("programs run in the jail %s", self._chosen.version)
        return self._chosen

    async def close(self) -> None:
        """End all runners."""
        if self._chosen is not None:
            await self._chosen.close()
