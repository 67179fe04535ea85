"""Runs of sessions: code on a state, and the state after it."""

from dataclasses import dataclass

from banyan.programs.run import Limits, Outcome


@dataclass(frozen=True, slots=True)
class SessionResult:
    """The end of a run.

    outcome: how it ended.
    stdout: the beginning of what it printed.
    stderr: likewise; the traceback of an exception that nothing caught, or a limit's reason.
    state: the state after it; that before it if a limit ended the run, or no worker did it.
    cpu_s: processor time.
    wall_s: wall-clock time.
    """

    outcome: Outcome
    stdout: bytes = b""
    stderr: bytes = b""
    state: bytes | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """A run to do.

    code: what to run.
    state: the state to run it on; None for a fresh one.
    limits: its limits; files, disk and processes do not exist.
    seed: seed of the random numbers of a fresh state.
    inputs: variables that are set before.
    prelude: code that is run before, ours.
    keeps: whether the state after it is wanted.
    """

    code: str
    state: bytes | None
    limits: Limits
    seed: int = 0
    inputs: dict[str, list[str]] | None = None
    prelude: str = ""
    keeps: bool = True
