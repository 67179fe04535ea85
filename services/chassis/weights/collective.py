"""Transfer of a version's bytes from a learner to an engine's workers by collectives (ADR 039).

The learner is rank 0, the workers follow. The weight file is broadcast as it is (file.py), in
pieces that both sides derive from the manifest; by NCCL between different accelerators, by gloo
elsewhere. The ranks meet at a key-value store on the learner. Anybody who reaches its port can
read along: it is for private networks. Torch is imported by the functions that need it.
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
_POLL_S = 0.005
_CHECK_S = 0.25  # between two calls of a rank's check
_SUFFIX = ".handover"
_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
_ENVIRONMENT_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Place:
    """The meeting point of the ranks of one transfer.

    host, port: address of the key-value store.
    token: prefix of the keys, so that two transfers never meet.
    transport: nccl or gloo.
    ranks: number of ranks, the learner included.
    piece_bytes: size after which a broadcast ends, with the tensor it is in.
    """

    host: str
    port: int
    token: str
    transport: str
    ranks: int
    piece_bytes: int


def write(manifest_path: Path, place: Place) -> None:
    """Write a note beside a manifest that its bytes come from a place, and not from a file."""
    manifest_path.with_suffix(_SUFFIX).write_text(json.dumps(asdict(place)))


def read(manifest_path: Path) -> Place | None:
    """Return the place noted beside a manifest; None if its bytes are in a file."""
    try:
        return Place(**json.loads(manifest_path.with_suffix(_SUFFIX).read_text()))
    except FileNotFoundError:
        return None


def forget(manifest_path: Path) -> None:
    """Remove the note: the ranks have met, or never will."""
    manifest_path.with_suffix(_SUFFIX).unlink(missing_ok=True)


def devices() -> list[str]:
    """Return the ids of the accelerators that this process sees."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [_device_id(index) for index in range(count)]


def _device_id(index: int) -> str:
    import torch

    return str(torch.cuda.get_device_properties(index).uuid)


def choose(own: "torch.device", others: list[str]) -> str:
    """Return the transport from a process that computes on `own` to one with these accelerators.

    NCCL refuses an accelerator that two ranks use.
    """
    if own.type != "cuda" or not others or _device_id(own.index or 0) in others:
        return "gloo"
    return "nccl"


@dataclass(frozen=True, slots=True)
class WeightSlice:
    """A part of the file that is broadcast at once.

    offset: first byte in the file.
    bytes: length.
    entries: tensors in it.
    """

    offset: int
    bytes: int
    entries: tuple[TensorEntry, ...]


def pieces(manifest: WeightManifest, piece_bytes: int) -> Iterator[WeightSlice]:
    """Yield all of the file in slices of whole tensors. Raise InvalidInput if tensors overlap."""
    tensors = sorted(manifest.tensors, key=lambda tensor: (tensor.offset, tensor.bytes))
    ends = [tensor.offset for tensor in tensors[1:]] + [manifest.bytes]
    start = 0
    entries: list[TensorEntry] = []
    for tensor, end in zip(tensors, ends, strict=False):  # without tensors there is one end
        if tensor.offset + tensor.bytes > end:
            raise InvalidInput(
                f"tensor {tensor.name} of step {manifest.step} lies over the next one"
            )
        entries.append(tensor)
        if end - start >= piece_bytes or tensor is tensors[-1]:
            yield WeightSlice(start, end - start, tuple(entries))
            start, entries = end, []


class Meeting:
    """The learner's side of one transfer until all ranks are there: a store on a port of its own.

    host: address of this host to listen at.
    wait_s: time that `gathered` waits for the workers.

    Raises TemporaryError if it cannot listen.
    """

    def __init__(self, host: str, transport: str, workers: int, wait_s: float) -> None:
        import torch.distributed as dist

        ranks = workers + 1
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as listening:
                listening.bind((host, 0))
                listening.listen()
                port = int(listening.getsockname()[1])
                # torch's stubs leave TCPStore out.
                self._store = dist.TCPStore(  # type: ignore[attr-defined]
                    host,
                    port,
                    ranks,
                    True,
                    timedelta(seconds=STEP_S),
                    wait_for_workers=False,
                    master_listen_fd=listening.detach(),
                )
        except (OSError, RuntimeError) as error:
            raise TemporaryError(
                f"cannot listen at {host} for a hand-over: {_first_line(error)}"
            ) from None
        self.place = Place(
            host=host,
            port=port,
            token=secrets.token_hex(16),
            transport=transport,
            ranks=ranks,
            piece_bytes=PIECE_BYTES,
        )
        self._wait_s = wait_s

    def gathered(self, given_up: Callable[[], bool]) -> "Ranks":
        """Wait for the workers. Raise TemporaryError if some are missing, or the node gave up."""
        store = _prefixed(self._store, self.place)
        workers = range(1, self.place.ranks)
        deadline = time.monotonic() + self._wait_s

        def check() -> None:
            if given_up():
                raise TemporaryError("the node gave up the hand-over")

        while not store.check([_key(rank) for rank in workers]):
            check()
            if time.monotonic() > deadline:
                missing = next(rank for rank in workers if not store.check([_key(rank)]))
                raise TemporaryError(
                    f"rank {missing} did not come to the hand-over in {self._wait_s:g} s"
                )
            time.sleep(_POLL_S)
        return Ranks(store, self.place, rank=0, address=self.place.host, check=check)


def join(place: Place, rank: int) -> "Ranks":
    """Join as a worker. Raise TemporaryError if the learner or another worker does not come."""
    import torch.distributed as dist

    limit = timedelta(seconds=STEP_S)
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            place.host, place.port, place.ranks, False, limit, wait_for_workers=False
        )
        prefixed = _prefixed(store, place)
        prefixed.set(_key(rank), "")
        return Ranks(
            prefixed,
            place,
            rank=rank,
            address=own_address(place.host, place.port),
            check=lambda: prefixed.check([_key(rank)]),
        )
    except (RuntimeError, OSError) as error:
        raise TemporaryError(
            f"no hand-over at {place.host}:{place.port}: {_first_line(error)}"
        ) from None


class Ranks:
    """The ranks of a transfer. Collectives raise TemporaryError if one of them is gone or late.

    check: raises if nobody is left to wait for. gloo notices a connection that ends between two
    broadcasts; of one that ends during a broadcast it may say nothing until its time limit.
    """

    def __init__(
        self, store: Any, place: Place, *, rank: int, address: str, check: Callable[[], object]
    ) -> None:
        self._limit = timedelta(seconds=STEP_S)
        self._transport, self._check = place.transport, check
        self._broken = False
        make = _nccl if place.transport == "nccl" else partial(_gloo, address=address)
        try:
            self._group: Any = make(store, rank, place.ranks, self._limit)
        except RuntimeError as error:
            raise TemporaryError(
                f"the ranks of a hand-over do not find each other: {_first_line(error)}"
            ) from None

    def broadcast(self, flat_B: "torch.Tensor") -> None:
        """Copy rank 0's bytes to all ranks."""
        import torch.distributed as dist

        self._wait(self._group.broadcast([flat_B], dist.BroadcastOptions()))

    def meet(self, device: "torch.device") -> None:
        """Wait until all ranks are here: none disconnects while another still reads."""
        import torch

        self._wait(self._group.allreduce([torch.ones(1, device=device)]))

    def close(self) -> None:
        """Disconnect. Ranks that still wait see their connection end, or the store missing."""
        groups = [self._group]
        self._group = None
        if self._transport == "nccl":
            with suppress(RuntimeError):
                groups[0].abort() if self._broken else groups[0].shutdown()
        if self._broken:  # gloo waits for its pending operations, up to its time limit
            threading.Thread(target=groups.clear, name="handover-end", daemon=True).start()

    def _wait(self, work: Any) -> None:
        begun = last_check = time.monotonic()
        try:
            while not work.is_completed():
                now = time.monotonic()
                if now > begun + STEP_S:  # NCCL without a watchdog has no time limit
                    raise TemporaryError(f"a collective did not end in {STEP_S:g} s")
                if now > last_check + _CHECK_S:
                    self._check()
                    last_check = now
                time.sleep(_POLL_S)
            work.wait(self._limit)
            return
        except (RuntimeError, TemporaryError) as error:
            cause = _first_line(error)
        self._broken = True
        del work  # the error's traceback would keep it, and with it the connections
        raise TemporaryError(f"the hand-over broke: {cause}")


def _nccl(store: Any, rank: int, ranks: int, limit: timedelta) -> Any:
    """Return a group whose calls wait in their own thread, without a watchdog.

    The default watchdog ends the process when another rank dies.
    """
    import torch.distributed as dist

    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    with _ENVIRONMENT_LOCK:
        before = os.environ.get(_BLOCKING)
        os.environ[_BLOCKING] = "1"  # read when the group is made
        try:
            return dist.ProcessGroupNCCL(store, rank, ranks, options)
        finally:
            if before is None:
                del os.environ[_BLOCKING]
            else:
                os.environ[_BLOCKING] = before


def _gloo(store: Any, rank: int, ranks: int, limit: timedelta, address: str) -> Any:
    import torch.distributed as dist

    # The stub of ProcessGroupGloo lacks `_Options`.
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = limit
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, ranks, options)


def _prefixed(store: Any, place: Place) -> Any:
    import torch.distributed as dist

    return dist.PrefixStore(place.token, store)  # type: ignore[attr-defined]


def _key(rank: int) -> str:
    """Return the key that a worker sets when it is there."""
    return f"here/{rank}"


def own_address(host: str, port: int) -> str:
    """Return the address of this host on the way to another. Raise TemporaryError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise TemporaryError(
            f"there is no way to {host} for a hand-over: {_first_line(error)}"
        ) from None


def _first_line(error: Exception) -> str:
    """Return torch's message without the place in its sources and without advice."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    if line.startswith("[/"):
        line = line.partition("] ")[2].partition(". ")[0]
    return line[:200]
