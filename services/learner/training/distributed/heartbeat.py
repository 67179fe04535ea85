"""Signs of life: every rank says each second that it is there and where it is, so that a broken collective has a name.

A pulse is a number that grows, and how far the rank has come. A thread says it, on a connection of its own to the ranks'
store, so it goes on while the rank computes or waits.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from torch._C._distributed_c10d import Store

from services.learner.training.distributed.rank_loss import RankLost

log = logging.getLogger(__name__)

BEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class Beat:
    """count: grows while the rank lives. place: passes that it has begun. doing: for people. failure: why it ends."""

    count: int = 0
    place: int = 0
    doing: str = ""
    failure: str = ""


class Pulse:
    """Says the beats of one rank, and reads those of others."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._beat = store, rank, Beat(doing="starting")
        self._count = 0
        self._keys = [f"pulse/{other}" for other in range(size)]
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._say()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def at(self, doing: str) -> None:
        """Notes what this rank is about to do."""
        self._beat = replace(self._beat, doing=doing)

    def passed(self) -> None:
        """Notes that it has begun another pass; all ranks make as many."""
        self._beat = replace(self._beat, place=self._beat.place + 1)

    def fail(self, cause: str) -> None:
        """Says why this rank ends, at once."""
        self._beat = replace(self._beat, failure=cause)
        self._say()

    def _run(self) -> None:
        while not self._end.wait(BEAT_S):
            try:
                self._say()
            except RuntimeError as error:  # the store went with the rank or launcher that held it
                return log.warning("the ranks' store is gone: %s", str(error).splitlines()[0])

    def _say(self) -> None:
        with self._lock:
            self._count += 1
            self._store.set(
                self._keys[self._rank], json.dumps(asdict(replace(self._beat, count=self._count)))
            )

    def await_all(self, deadline_s: float, look: Callable[[], None]) -> None:
        """Waits until every rank has said something, while `look` finds nothing wrong. Raises RankLost."""
        end = time.monotonic() + deadline_s
        while missing := [rank for rank, key in enumerate(self._keys) if not self._has(key)]:
            if time.monotonic() > end:
                raise RankLost(
                    f"ranks {missing} of {len(self._keys)} did not come within {deadline_s:.0f} s"
                )
            look()
            time.sleep(0.05)

    def _has(self, key: str) -> bool:
        with self._lock:
            return bool(self._store.check([key]))

    def read(self) -> dict[int, Beat]:
        """The last beat of each rank."""
        with self._lock:
            return {
                rank: Beat(**json.loads(said))
                for rank, said in enumerate(self._store.multi_get(self._keys))
            }

    def stop(self) -> None:
        """Ends the thread."""
        self._end.set()
        self._thread.join(2 * BEAT_S)


def suspects(before: Mapping[int, Beat], after: Mapping[int, Beat], asking: int) -> str:
    """Which ranks kept the others waiting, by two looks a few beats apart."""
    others = {rank: beat for rank, beat in after.items() if rank != asking}
    failed = [
        f"rank {rank} failed: {beat.failure}" for rank, beat in others.items() if beat.failure
    ]
    still = [
        rank
        for rank, beat in others.items()
        if beat.count == before[rank].count and not beat.failure
    ]
    gone = [f"rank {rank} gives no sign of life (last at {others[rank].doing})" for rank in still]
    if failed or gone:
        return "; ".join([*failed, *gone])
    least = min(beat.place for beat in after.values())
    late = [
        f"rank {rank} is only at {beat.doing}, pass {beat.place}"
        for rank, beat in others.items()
        if beat.place == least
    ]
    return "; ".join(late) or f"rank {asking} itself is behind the others"
