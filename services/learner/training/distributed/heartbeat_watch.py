"""Looks at the pulses of ranks: one that fails, or gives no sign of life for too long, is lost."""

import time
from collections.abc import Iterable

from services.learner.training.distributed.rank_loss import RankLost
from services.learner.training.distributed.heartbeat import Pulse


class Watch:
    """Over some ranks, from now on."""

    def __init__(self, pulse: Pulse, ranks: Iterable[int], patience_s: float) -> None:
        self._pulse, self._patience_s = pulse, patience_s
        now = time.monotonic()
        self._seen = dict.fromkeys(ranks, (-1, now))  # last count, and when it was new

    def look(self) -> None:
        """Raises RankLost for the first rank that is."""
        try:
            beats = self._pulse.read()
        except RuntimeError:
            raise RankLost("rank 0 or the launcher, which held the ranks' store, is gone") from None
        now = time.monotonic()
        for rank, (count, since) in self._seen.items():
            beat = beats[rank]
            if beat.failure:
                raise RankLost(f"rank {rank} failed at {beat.doing}: {beat.failure}")
            if beat.count != count:
                self._seen[rank] = (beat.count, now)
            elif now - since > self._patience_s:
                raise RankLost(
                    f"rank {rank} gave no sign of life for {now - since:.0f} s, last at {beat.doing}"
                )
