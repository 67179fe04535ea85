"""Heartbeats of ranks: each publishes every second that it lives, and its progress.

With them the error of a broken collective names the rank at fault. A heartbeat is a growing number
and the number of passes begun. A thread publishes it over a connection of its own to the ranks'
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
    """The state that a rank publishes.

    count: number that grows while the rank lives
    passes: passes that it has begun
    activity: its present activity, for people
    failure: cause of its end; empty while it lives
    """

    count: int = 0
    passes: int = 0
    activity: str = ""
    failure: str = ""


class Heartbeat:
    """Publishes the beats of one rank, and reads those of all."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._beat = store, rank, Beat(activity="starting")
        self._count = 0
        self._keys = [f"heartbeat/{other}" for other in range(size)]
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._publish()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def set_activity(self, activity: str) -> None:
        """Record what this rank is about to do."""
        self._beat = replace(self._beat, activity=activity)

    def count_pass(self) -> None:
        """Record the begin of a pass; all ranks make the same number."""
        self._beat = replace(self._beat, passes=self._beat.passes + 1)

    def publish_failure(self, cause: str) -> None:
        """Publish at once why this rank ends."""
        self._beat = replace(self._beat, failure=cause)
        self._publish()

    def _run(self) -> None:
        while not self._end.wait(BEAT_S):
            try:
                self._publish()
            except RuntimeError as error:  # the store went with the rank or launcher that held it
                return log.warning("the ranks' store is gone: %s", str(error).splitlines()[0])

    def _publish(self) -> None:
        with self._lock:
            self._count += 1
            beat = replace(self._beat, count=self._count)
            self._store.set(self._keys[self._rank], json.dumps(asdict(beat)))

    def await_all(self, deadline_s: float, check: Callable[[], None]) -> None:
        """Wait for the first beat of every rank, calling `check` meanwhile. Raises RankLost."""
        end = time.monotonic() + deadline_s
        while missing := [rank for rank, key in enumerate(self._keys) if not self._exists(key)]:
            if time.monotonic() > end:
                raise RankLost(
                    f"ranks {missing} of {len(self._keys)} did not come within {deadline_s:.0f} s"
                )
            check()
            time.sleep(0.05)

    def _exists(self, key: str) -> bool:
        with self._lock:
            return bool(self._store.check([key]))

    def read(self) -> dict[int, Beat]:
        """Return the last beat of each rank."""
        with self._lock:
            texts = self._store.multi_get(self._keys)
        return {rank: Beat(**json.loads(text)) for rank, text in enumerate(texts)}

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join(2 * BEAT_S)


def suspects(before: Mapping[int, Beat], after: Mapping[int, Beat], own: int) -> str:
    """Return the ranks that kept the others waiting, for people.

    before, after: beats of all ranks, read a few beats apart
    own: rank that asks
    """
    others = {rank: beat for rank, beat in after.items() if rank != own}
    failed: list[str] = []
    silent: list[str] = []
    for rank, beat in others.items():
        if beat.failure:
            failed.append(f"rank {rank} failed: {beat.failure}")
        elif beat.count == before[rank].count:
            silent.append(f"rank {rank} gives no sign of life (last at {beat.activity})")
    if failed or silent:
        return "; ".join([*failed, *silent])
    least = min(beat.passes for beat in after.values())
    late = [
        f"rank {rank} is only at {beat.activity}, pass {beat.passes}"
        for rank, beat in others.items()
        if beat.passes == least
    ]
    return "; ".join(late) or f"rank {own} itself is behind the others"
