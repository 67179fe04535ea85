"""The share of one run in a worker loop: bounded work under way, bounded waiting, no more."""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from services.verifier.intake.pace import Pace


class Sized(Protocol):
    """A job that can wait.

    weight: units of work, for example leaves.
    bytes: memory that it holds while it waits.
    """

    @property
    def weight(self) -> int: ...

    @property
    def bytes(self) -> int: ...


J = TypeVar("J", bound=Sized)
MAX_WAITING = 64  # messages of a run, so that it goes on without a round trip to the broker
MAX_WAITING_BYTES = 8 << 20


@dataclass(kw_only=True)
class Share(Generic[J]):
    """The jobs of one run. Each run has a share of the same size, so that none waits for another.

    max_under_way: weight under way below which more jobs begin.
    max_waiting: jobs that wait beyond those.
    under_way: weight of the jobs that have begun.
    waiting: jobs that have not begun, in order.
    waiting_bytes: memory of the waiting jobs.
    waiting_weight: their weight.
    pace: rate of the work that ends.
    """

    max_under_way: int
    max_waiting: int = MAX_WAITING
    under_way: int = 0
    waiting: deque[J] = field(default_factory=deque)
    waiting_bytes: int = 0
    waiting_weight: int = 0
    pace: Pace = field(default_factory=Pace)

    def offer(self, job: J) -> bool:
        """Add a job to those that wait; return False if the share is full.

        A job for which nothing waits and a place is free is taken whatever its size.
        """
        crowded = len(self.waiting) >= self.max_waiting
        too_large = self.waiting_bytes + job.bytes > MAX_WAITING_BYTES
        next_in_line = not self.waiting and self.under_way < self.max_under_way
        if (crowded or too_large) and not next_in_line:
            return False
        self.waiting.append(job)
        self.waiting_bytes += job.bytes
        self.waiting_weight += job.weight
        return True

    def delay_s(self, job: J, attempts: int, now: float) -> float:
        """Return the delay after which a refused job is to come again."""
        ahead = self.waiting_weight + self.under_way
        return self.pace.delay_s(job.weight, ahead, attempts, now)

    def begin(self) -> list[J]:
        """Return the jobs that may begin now, in order, and count them as under way."""
        begun: list[J] = []
        while self.waiting and self.under_way < self.max_under_way:
            job = self.waiting.popleft()
            self.waiting_bytes -= job.bytes
            self.waiting_weight -= job.weight
            self.under_way += job.weight
            begun.append(job)
        return begun

    def release(self, weight: int, now: float) -> None:
        """Return the places of jobs that have ended."""
        self.under_way -= weight
        self.pace.ended(weight, now)

    @property
    def idle(self) -> bool:
        """True if no job of the run waits or is under way."""
        return not self.under_way and not self.waiting
