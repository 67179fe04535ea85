"""Refused messages come again when there is room: seldom twice, and never long after that."""

import heapq
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.verifier.intake.pace import LONGEST_S
from services.verifier.intake.share import Share

LEAVES = 128


@dataclass(frozen=True)
class Job:
    weight: int
    bytes: int = 100


@dataclass
class Backlog:
    """A queue of a run before a verifier that scores so many leaves a second; time is virtual."""

    rate: float
    messages: int
    weight: int
    share: Share[Job] = field(default_factory=lambda: Share(max_under_way=LEAVES))
    deliveries: int = 0

    def run(self) -> float:
        """Return the seconds until all is scored."""
        now, busy_until, done = 0.0, 0.0, 0
        due = [(0.0, number, 0) for number in range(self.messages)]
        under_way: list[tuple[float, int]] = []
        while done < self.messages * self.weight:
            now = max(now, min([*(at for at, *_ in due[:1]), *(at for at, _ in under_way[:1])]))
            while under_way and under_way[0][0] <= now:
                weight = heapq.heappop(under_way)[1]
                self.share.release(weight, now)
                done += weight
            while due and due[0][0] <= now:
                _, number, attempts = heapq.heappop(due)
                self.deliveries += 1
                job = Job(self.weight)
                if not self.share.offer(job):
                    delay_s = self.share.delay_s(job, attempts + 1, now)
                    assert 0 < delay_s <= LONGEST_S
                    heapq.heappush(due, (now + delay_s, number, attempts + 1))
            if begun := self.share.begin():
                weight = sum(job.weight for job in begun)
                busy_until = max(busy_until, now) + weight / self.rate
                heapq.heappush(under_way, (busy_until, weight))
        return now


@settings(deadline=None, max_examples=15)
@example(rate=3556.0, messages=386, weight=4)
@given(
    rate=st.floats(100, 5000),
    messages=st.integers(1, 400),
    weight=st.integers(1, 64),
)
def test_a_backlog_takes_as_long_as_its_work(rate: float, messages: int, weight: int) -> None:
    backlog = Backlog(rate, messages, weight)
    took, work = backlog.run(), messages * weight / rate
    assert took <= 1.1 * work + 1.0
    assert backlog.deliveries <= messages * (8 + work / 10)


def test_a_backlog_of_small_messages_is_steady_work() -> None:
    backlog = Backlog(rate=2000, messages=1250, weight=16)
    assert backlog.run() <= 1.05 * 10
    assert backlog.deliveries <= 6 * 1250
