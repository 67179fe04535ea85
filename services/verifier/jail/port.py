"""The port of the jail, which every back end implements."""

from typing import Protocol

from banyan.programs.run import Result, Run


class Jail(Protocol):
    """A back end: runs each program in a jail of its own."""

    @property
    def version(self) -> str:
        """Name and rules of the back end, for the version of a score."""
        ...

    async def run(self, run: Run) -> Result:
        """Run a program; never raises for what it does."""
        ...

    async def close(self) -> None:
        """End all runners."""
        ...
