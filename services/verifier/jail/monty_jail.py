"""The jail of sessions: whole programs in the language of `monty`, each in a fresh session."""

import contextlib
import signal
from pathlib import Path

from banyan.errors import InvalidInput
from banyan.programs.run import Outcome, Result, Run
from banyan.programs.session import Task
from services.verifier.jail import select
from services.verifier.jail.battery import language
from services.verifier.jail.monty import Sessions

# The language has no `input`, no EOFError and no inheritance; a call of ours would need values to
# cross the sandbox's wall, so the input is there before the program, as a variable.
_INPUT = """
EOFError = OSError
def input(prompt=''):
    print(prompt, end='')
    if not _lines:
        raise EOFError('EOF when reading a line')
    return _lines.pop()
"""
_STATUS = {Outcome.DONE: 0, Outcome.EXITED: 1}


class MontyJail:
    """A jail whose programs have no files, processes and modules of others."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.version = sessions.version

    async def run(self, run: Run) -> Result:
        """Run a program; never raises for what it does."""
        lines = run.stdin.decode(errors="replace").splitlines()
        reads = "input" in run.program
        ended = await self._sessions.do(
            Task(
                run.program,
                state=None,
                limits=run.limits,
                inputs={"_lines": lines[::-1]} if reads else None,
                prelude=_INPUT if reads else "",
                keeps=False,
            )
        )
        return Result(
            outcome=ended.outcome,
            status=_STATUS.get(ended.outcome, -signal.SIGKILL),
            stdout=ended.stdout,
            stderr=ended.stderr,
            cpu_s=ended.cpu_s,
            wall_s=ended.wall_s,
        )

    async def close(self) -> None:
        """End all workers."""
        await self._sessions.close()


async def proven(state: Path, *, width: int = 2, key: bytes | None = None) -> Sessions:
    """Return sessions that no attempt of their battery breaks out of.

    state: folder in which proofs are kept.
    width: runs at once.
    key: seals states; see `Sessions.start`.

    Raises InvalidInput with the reason where the machine has none.
    """
    try:
        sessions = await Sessions.start(width=width, key=key)
        async with contextlib.AsyncExitStack() as undo:  # of a proof that is cancelled, too
            undo.push_async_callback(sessions.close)
            await select.prove(MontyJail(sessions), sessions.version, state, language.holes)
            undo.pop_all()
    except OSError as error:
        raise InvalidInput(f"this machine cannot run sessions of monty: {error}") from error
    return sessions
