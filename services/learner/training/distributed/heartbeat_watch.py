"""A watch over the heartbeats of ranks: a rank that fails, or is silent for too long, is lost."""

import time
from collections.abc import Iterable

from services.learner.training.distributed.heartbeat import Heartbeat
from services.learner.training.distributed.rank_loss import RankLost

STORE_GONE = "rank 0 or the launcher, which held the ranks' store, is gone"


class HeartbeatWatch:
    """A watch over some ranks, from its creation on."""

    def __init__(self, heartbeat: Heartbeat, ranks: Iterable[int], patience_s: float) -> None:
        self._heartbeat, self._patience_s = heartbeat, patience_s
        now = time.monotonic()
        self._last_change = dict.fromkeys(ranks, (-1, now))  # (count, time it was new) by rank

    def check(self) -> None:
        """Raise RankLost for the first rank that is lost."""
        try:
            beats = self._heartbeat.read()
        except RuntimeError:
            raise RankLost(STORE_GONE) from None
        now = time.monotonic()
        for rank, (count, since) in self._last_change.items():
            beat = beats[rank]
            if beat.failure:
                raise RankLost(f"rank {rank} failed at {beat.activity}: {beat.failure}")
            if beat.count != count:
                self._last_change[rank] = (beat.count, now)
            elif now - since > self._patience_s:
                silence = f"rank {rank} gave no sign of life for {now - since:.0f} s"
                raise RankLost(f"{silence}, last at {beat.activity}")
