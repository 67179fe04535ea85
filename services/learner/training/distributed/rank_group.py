"""The ranks of one learner: their rendezvous, and errors of collectives that name the rank.

They meet as torch.distributed does (`env://`: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), so
torchrun starts them unchanged. Collectives end after `timeout_s`, loading after `load_s`; the wait
for a command may take as long as sampling does.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from services.chassis.process.parent_death import orphaned
from services.learner.training.distributed.heartbeat import BEAT_S, Heartbeat, suspects
from services.learner.training.distributed.heartbeat_watch import STORE_GONE, HeartbeatWatch
from services.learner.training.distributed.rank_env import RankPlace
from services.learner.training.distributed.rank_loss import RankLost

MEETING_S = 180.0  # a rank imports torch and transformers before it comes
TIMEOUT_S = 60.0
LOAD_S = 900.0
_SUSPECT_BEATS = 4
# Marks of a broken collective in messages of errors that are plain RuntimeErrors.
_BROKEN = (
    "gloo",
    "NCCL",
    "Timed out",
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "recvValue",
)

Check = Callable[[], None]  # raises RankLost for a rank that is gone


def _no_check() -> None:
    """Check nothing: torchrun watches its ranks."""


class RankGroup:
    """The joined group; every rank makes one."""

    def __init__(
        self,
        place: RankPlace,
        timeout_s: float = TIMEOUT_S,
        store: Store | None = None,
        *,
        check: Check = _no_check,
        load_s: float = LOAD_S,
    ) -> None:
        self.rank, self.size = place.rank, place.size
        self.timeout_s, self.load_s = timeout_s, load_s
        self.local = place.local or (place.rank, place.size)
        if store is not None or os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost", "::1"):
            # Ranks of one machine are reached by nobody else.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        shared = store or _rendezvous_store(place)
        self._store = PrefixStore("banyan", shared)
        own_connection = PrefixStore("banyan", _cloned(shared))
        self.heartbeat = Heartbeat(own_connection, place.rank, place.size)
        with self.guarded("meeting"):
            self.heartbeat.await_all(MEETING_S, check)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                store=shared,
                rank=place.rank,
                world_size=place.size,
                timeout=timedelta(seconds=timeout_s),
            )

    def close(self) -> None:
        """Leave the group."""
        self.heartbeat.stop()
        if dist.is_initialized():
            dist.destroy_process_group()

    # -- waits without a deadline of collectives --

    def put(self, key: str, value: str = "") -> None:
        """Store a value that all ranks can read."""
        with self.guarded(f"saying {key}"):
            self._store.set(key, value or "-")

    def remove(self, key: str) -> None:
        """Remove a stored value."""
        with self.guarded(f"removing {key}"):
            self._store.delete_key(key)

    def wait_for(self, key: str, writer: int, end: float = math.inf) -> str:
        """Return the value of a key as soon as rank `writer` has stored it.

        Raises RankLost once that rank is lost, or at `end`, a moment of time.monotonic().
        """
        watch = HeartbeatWatch(self.heartbeat, [writer], self.timeout_s)
        while not self._arrived(key):
            watch.check()
            if time.monotonic() > end:
                raise self._late(writer)
            if orphaned():
                raise RankLost(f"the process that started rank {self.rank} is gone")
        with self.guarded(f"reading {key}"):
            return self._store.get(key).decode().removeprefix("-")

    def _arrived(self, key: str) -> bool:
        with self.guarded(f"waiting for {key}"):
            try:
                self._store.wait([key], timedelta(seconds=2 * BEAT_S))
            except dist.DistStoreError as error:
                if "timeout" not in str(error).lower():
                    raise
                return False
        return True

    def meet(self, place: str) -> None:
        """Wait until all ranks are at a place.

        They load for minutes, and not equally long. Raises RankLost.
        """
        self.put(f"{place}/{self.rank}")
        end = time.monotonic() + self.load_s
        for rank in range(self.size):
            self.wait_for(f"{place}/{rank}", rank, end)

    def _late(self, rank: int) -> RankLost:
        with self.guarded("looking for who is late"):
            activity = self.heartbeat.read()[rank].activity
        waited = f"{self.load_s:.0f} s after rank {self.rank} was done"
        return RankLost(
            f"rank {rank} lives, and is still at {activity}, {waited} (BANYAN_RANK_LOAD_S)"
        )

    # -- collectives --

    @contextmanager
    def guarded(self, activity: str) -> Iterator[None]:
        """Turn an error of a collective in the block into RankLost, with the rank at fault."""
        self.heartbeat.set_activity(activity)
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            if not isinstance(error, dist.DistError) and not any(mark in text for mark in _BROKEN):
                raise
            cause = text.splitlines()[0].split(". This is")[0][:300]
            culprits = self._suspects()
            raise RankLost(f"rank {self.rank} at {activity}: {culprits} ({cause})") from None

    def _suspects(self) -> str:
        try:
            before = self.heartbeat.read()
            time.sleep(_SUSPECT_BEATS * BEAT_S)
            return suspects(before, self.heartbeat.read(), self.rank)
        except RuntimeError:
            return STORE_GONE


def _cloned(store: Store) -> Store:
    """Return a second connection, which a wait on the first one does not hold up."""
    clone: Store = store.clone()  # type: ignore[attr-defined]  # torch's stubs leave it out
    clone.set_timeout(timedelta(seconds=TIMEOUT_S))
    return clone


def _rendezvous_store(place: RankPlace) -> Store:
    """Return the store of the launcher or of rank 0. Raises RankLost."""
    try:
        meeting = rendezvous("env://", timeout=timedelta(seconds=MEETING_S))
        store: Store = next(iter(meeting))[0]
        return store
    except RuntimeError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        cause = str(error).splitlines()[0][:300]
        raise RankLost(f"rank {place.rank} cannot reach rank 0 at {address}: {cause}") from None
