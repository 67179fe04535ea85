"""Hands a version's bytes from a learner to an engine's workers by collectives, without a file between them (ADR 039).

The learner is rank 0, the workers follow. What is broadcast is the weight file as it is (weightfile.py), in pieces that both
sides read off the manifest; NCCL carries it between accelerators that differ, gloo elsewhere. The ranks meet at a key-value
store on the learner. Whoever reaches its port can read along: it is for networks where nobody else is. Torch is imported by
the functions that need it.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.errors import InvalidInput, TemporaryError
from services.chassis.weights.file import TensorEntry, WeightManifest

if TYPE_CHECKING:
    import torch

PIECE_BYTES = 64 << 20
STEP_S = 60.0  # of one collective
_TICK_S, _LOOK_S = 0.005, 0.25
_SUFFIX = ".handover"
_BLOCKING, _ENVIRONMENT = "TORCH_NCCL_BLOCKING_WAIT", threading.Lock()


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks meet, and how.

    token: of the names under which they do, so that no two hand-overs meet; transport: nccl or gloo; ranks: the learner and
    all workers; piece_bytes: after which a broadcast ends, with the tensor it is in.
    """

    host: str
    port: int
    token: str
    transport: str
    ranks: int
    piece_bytes: int


def write(manifest_path: Path, place: Place) -> None:
    """Notes beside a manifest that its bytes are to be had there, and not from a file."""
    manifest_path.with_suffix(_SUFFIX).write_text(json.dumps(asdict(place)))


def read(manifest_path: Path) -> Place | None:
    """What is noted beside a manifest; None where its bytes are in a file."""
    try:
        return Place(**json.loads(manifest_path.with_suffix(_SUFFIX).read_text()))
    except FileNotFoundError:
        return None


def forget(manifest_path: Path) -> None:
    """Removes the note: the ranks have met, or never will."""
    manifest_path.with_suffix(_SUFFIX).unlink(missing_ok=True)


def devices() -> list[str]:
    """Ids of the accelerators that this process sees."""
    import torch

    return [_id(at) for at in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]


def _id(at: int) -> str:
    import torch

    return str(torch.cuda.get_device_properties(at).uuid)


def choose(own: "torch.device", others: list[str]) -> str:
    """The transport from a process that computes on `own` to one that sees these accelerators. NCCL takes none that two
    ranks use."""
    return "nccl" if own.type == "cuda" and others and _id(own.index or 0) not in others else "gloo"


@dataclass(frozen=True, slots=True)
class WeightSlice:
    """A stretch of the file that is broadcast at once, and the tensors in it."""

    offset: int
    bytes: int
    entries: tuple[TensorEntry, ...]


def pieces(manifest: WeightManifest, piece_bytes: int) -> Iterator[WeightSlice]:
    """All of the file, each tensor whole; several small ones together. Raises InvalidInput where tensors overlap."""
    entries = sorted(manifest.tensors, key=lambda t: (t.offset, t.bytes))
    start, held = 0, list[TensorEntry]()
    for at, entry in enumerate(entries):
        end = entries[at + 1].offset if at + 1 < len(entries) else manifest.bytes
        if entry.offset + entry.bytes > end:
            raise InvalidInput(
                f"tensor {entry.name} of step {manifest.step} lies over the next one"
            )
        held.append(entry)
        if end - start >= piece_bytes or at + 1 == len(entries):
            yield WeightSlice(start, end - start, tuple(held))
            start, held = end, []


class Meeting:
    """The learner's side of one hand-over until all ranks are there: a store on a port of its own.

    host: the address to listen at, of this host; wait_s: how long `gathered` waits. Raises TemporaryError where it cannot
    listen.
    """

    def __init__(self, host: str, transport: str, workers: int, wait_s: float) -> None:
        import torch.distributed as dist

        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as listening:
                listening.bind((host, 0))
                listening.listen()
                port = int(listening.getsockname()[1])
                limit, ranks = timedelta(seconds=STEP_S), workers + 1
                self._store = dist.TCPStore(  # type: ignore[attr-defined]  # torch's stubs leave it out
                    host,
                    port,
                    ranks,
                    True,
                    limit,
                    wait_for_workers=False,
                    master_listen_fd=listening.detach(),
                )
        except (OSError, RuntimeError) as error:
            raise TemporaryError(
                f"cannot listen at {host} for a hand-over: {_first(error)}"
            ) from None
        self.place = Place(host, port, secrets.token_hex(16), transport, ranks, PIECE_BYTES)
        self._wait_s = wait_s

    def gathered(self, given_up: Callable[[], bool]) -> "Ranks":
        """Waits for the workers. Raises TemporaryError where some do not come, or somebody gave it up."""
        store, deadline = _named(self._store, self.place), time.monotonic() + self._wait_s
        while not store.check([f"here/{rank}" for rank in range(1, self.place.ranks)]):
            if given_up():
                raise TemporaryError("the node gave up the hand-over")
            if time.monotonic() > deadline:
                missing = [
                    rank for rank in range(1, self.place.ranks) if not store.check([f"here/{rank}"])
                ]
                raise TemporaryError(
                    f"rank {missing[0]} did not come to the hand-over in {self._wait_s:g} s"
                )
            time.sleep(_TICK_S)

        def look() -> None:
            if given_up():
                raise TemporaryError("the node gave up the hand-over")

        return Ranks(store, self.place, 0, self.place.host, look)


def join(place: Place, rank: int) -> "Ranks":
    """A worker's side. Raises TemporaryError where the learner or another worker does not come."""
    import torch.distributed as dist

    try:
        limit = timedelta(seconds=STEP_S)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            place.host, place.port, place.ranks, False, limit, wait_for_workers=False
        )
        named = _named(store, place)
        named.set(f"here/{rank}", "")
        return Ranks(
            named,
            place,
            rank,
            own_address(place.host, place.port),
            lambda: named.check([f"here/{rank}"]),
        )
    except (RuntimeError, OSError) as error:
        raise TemporaryError(
            f"no hand-over at {place.host}:{place.port}: {_first(error)}"
        ) from None


class Ranks:
    """All ranks of a hand-over. Collectives raise TemporaryError where one of them is gone or late.

    look: raises where there is nobody to wait for any more. gloo hears of a connection that ends between two broadcasts; of
    one that ends amid one it may say nothing for as long as it may take.
    """

    def __init__(
        self, store: Any, place: Place, rank: int, address: str, look: Callable[[], object]
    ) -> None:
        self._limit, self._transport, self._broken = (
            timedelta(seconds=STEP_S),
            place.transport,
            False,
        )
        self._look = look
        make = _nccl if place.transport == "nccl" else partial(_gloo, address=address)
        try:
            self._group: Any = make(store, rank, place.ranks, self._limit)
        except RuntimeError as error:
            raise TemporaryError(
                f"the ranks of a hand-over do not find each other: {_first(error)}"
            ) from None

    def broadcast(self, flat_B: "torch.Tensor") -> None:
        """Rank 0's bytes, to all."""
        import torch.distributed as dist

        self._ended(self._group.broadcast([flat_B], dist.BroadcastOptions()))

    def meet(self, device: "torch.device") -> None:
        """Waits until all ranks have come here: nobody hangs up while another still reads."""
        import torch

        self._ended(self._group.allreduce([torch.ones(1, device=device)]))

    def close(self) -> None:
        """Hangs up: others that still wait for this rank are told by their connections, or find that the store is gone."""
        held = [self._group]
        self._group = None
        if self._transport == "nccl":
            with suppress(RuntimeError):
                held[0].abort() if self._broken else held[0].shutdown()
        if self._broken:  # gloo waits for what it has begun, which may take as long as it may
            threading.Thread(target=held.clear, name="handover-end", daemon=True).start()

    def _ended(self, work: Any) -> None:
        begun = look_at = time.monotonic()
        try:
            while not work.is_completed():
                now = time.monotonic()
                if (
                    now > begun + STEP_S
                ):  # NCCL without a watchdog never says that it takes too long
                    raise TemporaryError(f"a collective did not end in {STEP_S:g} s")
                if now > look_at + _LOOK_S:
                    self._look()
                    look_at = now
                time.sleep(_TICK_S)
            work.wait(self._limit)
            return
        except (RuntimeError, TemporaryError) as error:
            said = _first(error)
        self._broken = True
        del work  # it would hold the connections as long as somebody looks at the error
        raise TemporaryError(f"the hand-over broke: {said}")


def _nccl(store: Any, rank: int, ranks: int, limit: timedelta) -> Any:
    """Waits in the thread that asks, without a watchdog: by default that one ends the process where another rank dies."""
    import torch.distributed as dist

    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    with _ENVIRONMENT:
        before = os.environ.get(_BLOCKING)
        os.environ[_BLOCKING] = "1"  # read as the group is made
        try:
            return dist.ProcessGroupNCCL(store, rank, ranks, options)
        finally:
            if before is None:
                del os.environ[_BLOCKING]
            else:
                os.environ[_BLOCKING] = before


def _gloo(store: Any, rank: int, ranks: int, limit: timedelta, address: str) -> Any:
    import torch.distributed as dist

    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stub lacks it
    options._timeout, options._devices = (
        limit,
        [dist.ProcessGroupGloo.create_device(hostname=address)],
    )
    return dist.ProcessGroupGloo(store, rank, ranks, options)


def _named(store: Any, place: Place) -> Any:
    import torch.distributed as dist

    return dist.PrefixStore(place.token, store)  # type: ignore[attr-defined]


def own_address(host: str, port: int) -> str:
    """The address of this host on the way to another. Raises TemporaryError."""
    try:
        family, _, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect(at)
            return str(asked.getsockname()[0])
    except OSError as error:
        raise TemporaryError(
            f"there is no way to {host} for a hand-over: {_first(error)}"
        ) from None


def _first(error: Exception) -> str:
    """What torch says, without the place in its sources and without advice."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line.partition("] ")[2].partition(". ")[0][:200] if line.startswith("[/") else line[:200]
