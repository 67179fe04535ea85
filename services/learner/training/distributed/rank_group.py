"""The ranks of one learner: who they are, how they meet, and errors of collectives that name the rank.

They meet as torch.distributed does it (`env://`: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), so torchrun starts them
unchanged. Collectives end after `timeout_s`, loading after `load_s`; waiting for orders may take as long as sampling does.
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
from services.learner.training.distributed.rank_loss import RankLost
from services.learner.training.distributed.rank_env import Place
from services.learner.training.distributed.heartbeat import BEAT_S, Pulse, suspects
from services.learner.training.distributed.heartbeat_watch import Watch

MEETING_S = 180.0  # a rank imports torch and transformers before it comes
TIMEOUT_S = 60.0
LOAD_S = 900.0
_LOOK_BEATS = 4
_SIGNS = (
    "gloo",
    "NCCL",
    "Timed out",
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "recvValue",
)


Look = Callable[[], None]  # raises RankLost if it sees that a rank is gone


def _nothing() -> None:
    """Where somebody else looks: torchrun."""


class RankGroup:
    """The group, joined. Every rank makes one."""

    def __init__(
        self,
        at: Place,
        timeout_s: float = TIMEOUT_S,
        store: Store | None = None,
        look: Look = _nothing,
        load_s: float = LOAD_S,
    ) -> None:
        self.rank, self.size, self.timeout_s, self.load_s = at.rank, at.size, timeout_s, load_s
        self.local = at.local or (at.rank, at.size)
        if store is not None or os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost", "::1"):
            os.environ.setdefault(
                "GLOO_SOCKET_IFNAME", "lo"
            )  # ranks of one machine are reached by nobody else
        met = store or _met(at)
        self._store = PrefixStore("banyan", met)
        self.pulse = Pulse(PrefixStore("banyan", _apart(met)), at.rank, at.size)
        backend, limit = (
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            timedelta(seconds=timeout_s),
        )
        with self.named("meeting"):
            self.pulse.await_all(MEETING_S, look)
            dist.init_process_group(
                backend, store=met, rank=at.rank, world_size=at.size, timeout=limit
            )

    def close(self) -> None:
        """Leaves the group."""
        self.pulse.stop()
        if dist.is_initialized():
            dist.destroy_process_group()

    # -- what may take as long as it takes --

    def say(self, key: str, value: str = "") -> None:
        """Puts a word where all ranks can read it."""
        with self.named(f"saying {key}"):
            self._store.set(key, value or "-")

    def forget(self, key: str) -> None:
        """Removes one."""
        with self.named(f"removing {key}"):
            self._store.delete_key(key)

    def hear(self, key: str, of: int, end: float = math.inf) -> str:
        """Waits for a word of rank `of`, as long as that rank lives, until `end` on the clock. Raises RankLost."""
        watch = Watch(self.pulse, [of], self.timeout_s)
        while not self._came(key):
            watch.look()
            if time.monotonic() > end:
                raise self._late(of)
            if orphaned():
                raise RankLost(f"the process that started rank {self.rank} is gone")
        with self.named(f"reading {key}"):
            return self._store.get(key).decode().removeprefix("-")

    def _came(self, key: str) -> bool:
        with self.named(f"waiting for {key}"):
            try:
                self._store.wait([key], timedelta(seconds=2 * BEAT_S))
            except dist.DistStoreError as error:
                if "timeout" not in str(error).lower():
                    raise
                return False
        return True

    def meet(self, where: str) -> None:
        """Waits until all ranks are here: they load for minutes, and not all equally long. Raises RankLost."""
        self.say(f"{where}/{self.rank}")
        end = time.monotonic() + self.load_s
        for rank in range(self.size):
            self.hear(f"{where}/{rank}", rank, end)

    def _late(self, rank: int) -> RankLost:
        with self.named("looking for who is late"):
            doing = self.pulse.read()[rank].doing
        waited = f"{self.load_s:.0f} s after rank {self.rank} was done"
        return RankLost(
            f"rank {rank} lives, and is still at {doing}, {waited} (BANYAN_RANK_LOAD_S)"
        )

    # -- what must not --

    @contextmanager
    def named(self, doing: str) -> Iterator[None]:
        """An error of a collective in it becomes RankLost, with the rank that is to blame."""
        self.pulse.at(doing)
        try:
            yield
        except RuntimeError as error:
            said = str(error).splitlines()[0].split(". This is")[0][:300]
            if not isinstance(error, dist.DistError) and not any(
                sign in str(error) for sign in _SIGNS
            ):
                raise
            raise RankLost(f"rank {self.rank} at {doing}: {self._who()} ({said})") from None

    def _who(self) -> str:
        try:
            before = self.pulse.read()
            time.sleep(_LOOK_BEATS * BEAT_S)
            return suspects(before, self.pulse.read(), self.rank)
        except RuntimeError:
            return "rank 0 or the launcher, which held the ranks' store, is gone"


def _apart(store: Store) -> Store:
    """A connection of its own: what waits on the other one does not hold it up."""
    found: Store = store.clone()  # type: ignore[attr-defined]  # torch's stubs leave it out
    found.set_timeout(timedelta(seconds=TIMEOUT_S))
    return found


def _met(at: Place) -> Store:
    """The store that the launcher or rank 0 holds."""
    try:
        found: Store = next(iter(rendezvous("env://", timeout=timedelta(seconds=MEETING_S))))[0]
        return found
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RankLost(
            f"rank {at.rank} cannot reach rank 0 at {where}: {str(error).splitlines()[0][:300]}"
        ) from None
