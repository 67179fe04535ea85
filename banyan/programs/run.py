"""Runs of foreign programs: what goes in, what comes out, and who caused how it ended.

A runner gets the program and its input alone. Rows, replies and rewards stay with the grader, which
compares the bytes that come back.
"""

import enum
from dataclasses import dataclass, field

THREADS = 16
"""Threads of a run beside its first, if its processes have no more."""


class Outcome(enum.StrEnum):
    """The end of a run. All but WALL and LOST are the program's own doing."""

    DONE = "DONE"
    """It ended with status 0."""
    EXITED = "EXITED"
    """It ended with another status; an exception that nothing caught has status 1."""
    SIGNALLED = "SIGNALLED"
    """It crashed, or ended itself by a signal."""
    CPU = "CPU"
    """It used up its processor time."""
    MEMORY = "MEMORY"
    """It used up its memory."""
    OUTPUT = "OUTPUT"
    """It wrote more than it may."""
    DISK = "DISK"
    """It used up its disk space or its files."""
    PROCESSES = "PROCESSES"
    """It started too many processes."""
    WAITED = "WAITED"
    """Time was over, and it had slept for most of it."""
    WALL = "WALL"
    """Time was over while it wanted to run and had processor time left: the machine was busy."""
    LOST = "LOST"
    """The runner was lost."""

    @property
    def is_programs(self) -> bool:
        """True if the program caused it, and not the machine."""
        return self not in (Outcome.WALL, Outcome.LOST)

    @property
    def part(self) -> str:
        """Name of the part of a score that names this cause."""
        return "crashed" if self is Outcome.SIGNALLED else self.lower()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run, each over all its processes together.

    wall_s: wall-clock time.
    cpu_s: processor time.
    memory_mb: memory.
    disk_mb: bytes in its folder.
    files: files and folders in its folder.
    processes: processes beside the first; 0 forbids them. More are ended within moments; the
        kernel bounds processes and threads together, at `THREADS` more.
    output_bytes: bytes of stdout and stderr, each.
    """

    wall_s: float = 10.0
    cpu_s: float = 5.0
    memory_mb: int = 256
    disk_mb: int = 16
    files: int = 256
    processes: int = 0
    output_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Run:
    """A program with its input.

    program: Python source.
    stdin: bytes that it reads from standard input.
    limits: its limits.
    """

    program: str
    stdin: bytes = b""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run.

    outcome: how it ended.
    status: exit status, or the negative number of a signal.
    stdout: the beginning of what it wrote there.
    stderr: likewise.
    cpu_s: processor time of its processes.
    wall_s: wall-clock time.
    """

    outcome: Outcome
    status: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    cpu_s: float = 0.0
    wall_s: float = 0.0
