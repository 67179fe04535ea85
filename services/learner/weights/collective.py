"""The hand-over of weights to nodes by collectives: weight store `nccl` of the learner (ADR 039).

A node asks, and gets the address for its workers; a thread waits for them and broadcasts the flat
file, which goes to the accelerator piece by piece where NCCL carries it.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from banyan.errors import InvalidInput, TemporaryError
from banyan.v1 import learner_service_pb2 as messages
from services.chassis.process import telemetry
from services.chassis.weights import collective, file, lock
from services.chassis.weights.collective import Meeting
from services.chassis.weights.file import WeightManifest
from services.learner.weights.folder import WeightFolder

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

AT_ONCE = 8  # nodes; others ask again
_WAIT_S = 60.0
_MOST_WORKERS = 1024


class HandOverServer:
    """The hand-overs of one learner, which computes on `device`.

    waits_s: longest time for which nodes let branches run before they take new weights
    """

    def __init__(self, weights: WeightFolder, device: "torch.device", waits_s: float = 0.0) -> None:
        self._weights, self._device, self._wait_s = weights, device, _WAIT_S + waits_s
        self._under_way: set[str] = set()  # nodes, until their threads have ended

    async def serve(
        self, request: messages.HandOverRequest, peer: str
    ) -> AsyncIterator[messages.HandOverResponse]:
        """Yield the address at which the ranks meet, then the number of bytes sent.

        A node that hangs up ends it. Raises BanyanError, after which the node asks again.

        peer: address of the node, as gRPC gives it
        """
        node = request.node_id[:64]
        self._refuse(node, request.workers)
        manifest = self._weights.find(request.digest)
        cancelled, sending = threading.Event(), None
        self._under_way.add(node)
        try:
            with lock.held(manifest.manifest_path):
                meeting = await asyncio.to_thread(self._open, request, peer)
                yield _invitation(manifest, meeting)
                send = partial(_send, manifest, meeting, self._device, cancelled.is_set)
                sending = _in_thread(send)
                seconds = await asyncio.shield(sending)
            log.info(
                "weights of step %d handed over to node %r, %d workers, by %s: %d bytes in %.3f s",
                manifest.step,
                node,
                request.workers,
                meeting.place.transport,
                manifest.bytes,
                seconds,
            )
            telemetry.count("banyan.weights.sent", manifest.bytes)
            yield messages.HandOverResponse(sent_bytes=manifest.bytes)
        finally:
            cancelled.set()
            if sending is None or sending.done():
                self._under_way.discard(node)
            else:
                sending.add_done_callback(partial(self._ended, node))

    def _refuse(self, node: str, workers: int) -> None:
        """Raise InvalidInput for a bad number of workers, TemporaryError if no slot is free."""
        if not 0 < workers <= _MOST_WORKERS:
            raise InvalidInput(f"a hand-over to {workers} workers; there are 1 to {_MOST_WORKERS}")
        if node in self._under_way:
            raise TemporaryError(f"node {node!r} is handed weights; ask again in a second", 1.0)
        if len(self._under_way) >= AT_ONCE:
            raise TemporaryError(f"{AT_ONCE} nodes are handed weights; ask again in a second", 1.0)

    def _ended(self, node: str, sending: "asyncio.Future[float]") -> None:
        """Log the error of a hand-over whose node has hung up."""
        self._under_way.discard(node)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            log.info("the hand-over to node %r ended: %s", node, error)

    def _open(self, request: messages.HandOverRequest, peer: str) -> Meeting:
        host, port = _address(peer)
        transport = collective.choose(self._device, list(request.devices))
        own = collective.own_address(host, port)
        return Meeting(own, transport, request.workers, self._wait_s)


def _address(peer: str) -> tuple[str, int]:
    """Return host and port of `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`.

    Raises InvalidInput for another kind of address.
    """
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        raise InvalidInput(f"a hand-over to {peer!r}; it needs an address of IP")
    return host.strip("[]"), int(port)


def _in_thread(function: Callable[[], float]) -> "asyncio.Future[float]":
    """Run a function in a daemon thread of its own, which no shutdown waits for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[float] = loop.create_future()

    def run() -> None:
        try:
            resolve = partial(_resolve, future, function(), None)
        except BaseException as error:  # the future carries whatever it is to the caller
            resolve = partial(_resolve, future, 0.0, error)
        with contextlib.suppress(RuntimeError):  # the learner has ended
            loop.call_soon_threadsafe(resolve)

    threading.Thread(target=run, name="handover", daemon=True).start()
    return future


def _resolve(future: "asyncio.Future[float]", value: float, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def _invitation(manifest: WeightManifest, meeting: Meeting) -> messages.HandOverResponse:
    place = meeting.place
    return messages.HandOverResponse(
        manifest_json=manifest.to_json(),
        host=place.host,
        port=place.port,
        token=place.token,
        transport=place.transport,
        piece_bytes=place.piece_bytes,
    )


def _send(
    manifest: WeightManifest,
    meeting: Meeting,
    device: "torch.device",
    cancelled: Callable[[], bool],
) -> float:
    """Broadcast a version to the workers that come, and wait until they have it.

    Returns the seconds since they were complete.
    """
    import torch

    target = device if meeting.place.transport == "nccl" else torch.device("cpu")
    with lock.held(manifest.manifest_path):  # the node may hang up, and its lock goes with it
        flat_B = file.read_flat(manifest)
        ranks, begun = meeting.gathered(cancelled), time.monotonic()
        with contextlib.closing(ranks):
            for piece in collective.pieces(manifest, meeting.place.piece_bytes):
                if cancelled():
                    raise TemporaryError("the node gave up the hand-over")
                if piece.bytes:
                    ranks.broadcast(flat_B[piece.offset : piece.offset + piece.bytes].to(target))
            ranks.meet(target)
        return time.monotonic() - begun
