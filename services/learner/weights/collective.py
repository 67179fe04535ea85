"""Hands weights over to nodes by collectives: weight store `nccl`, the learner's side (ADR 039).

A node asks and is told where to send its workers; a thread waits for them and broadcasts the flat file, which goes to the
accelerator piece by piece where NCCL carries it.
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


class Hands:
    """Hand-overs of one learner, which computes on `device`. waits_s: how long nodes may let branches run before they take
    new weights."""

    def __init__(self, weights: WeightFolder, device: "torch.device", waits_s: float = 0.0) -> None:
        self._weights, self._device, self._wait_s = weights, device, _WAIT_S + waits_s
        self._under_way: set[str] = set()  # nodes; until their threads have ended

    async def over(
        self, request: messages.HandOverRequest, peer: str
    ) -> AsyncIterator[messages.HandOverResponse]:
        """Says where the ranks meet, then that all was sent. Raises BanyanError; the node asks again then.

        peer: who asks, as gRPC names it. A node that hangs up ends it.
        """
        node = request.node_id[:64]
        if not 0 < request.workers <= _MOST_WORKERS:
            raise InvalidInput(
                f"a hand-over to {request.workers} workers; there are 1 to {_MOST_WORKERS}"
            )
        if node in self._under_way or len(self._under_way) >= AT_ONCE:
            who = f"node {node!r} is" if node in self._under_way else f"{AT_ONCE} nodes are"
            raise TemporaryError(f"{who} handed weights; ask again in a second", 1.0)
        manifest = self._weights.find(request.digest)
        gave_up, sending = threading.Event(), None
        self._under_way.add(node)
        try:
            with lock.held(manifest.manifest_path):
                meeting = await asyncio.to_thread(self._open, request, peer)
                yield _invitation(manifest, meeting)
                sending = _in_thread(lambda: _send(manifest, meeting, self._device, gave_up.is_set))
                took_s = await asyncio.shield(sending)
            said = f"weights of step {manifest.step} handed over to node {node!r}, {request.workers} workers"
            log.info(
                "%s, by %s: %d bytes in %.3f s",
                said,
                meeting.place.transport,
                manifest.bytes,
                took_s,
            )
            telemetry.count("banyan.weights.sent", manifest.bytes)
            yield messages.HandOverResponse(sent_bytes=manifest.bytes)
        finally:
            gave_up.set()
            if sending is None or sending.done():
                self._under_way.discard(node)
            else:
                sending.add_done_callback(partial(self._ended, node))

    def _ended(self, node: str, sending: "asyncio.Future[float]") -> None:
        """Nobody waits for it any more."""
        self._under_way.discard(node)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            log.info("the hand-over to node %r ended: %s", node, error)

    def _open(self, request: messages.HandOverRequest, peer: str) -> Meeting:
        host, port = _address(peer)
        transport = collective.choose(self._device, list(request.devices))
        return Meeting(collective.own_address(host, port), transport, request.workers, self._wait_s)


def _address(peer: str) -> tuple[str, int]:
    """Host and port of `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`. Raises InvalidInput."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        raise InvalidInput(f"a hand-over to {peer!r}; it needs an address of IP")
    return host.strip("[]"), int(port)


def _in_thread(do: Callable[[], float]) -> "asyncio.Future[float]":
    """Runs it in a thread of its own, which holds up nobody's end."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[float] = loop.create_future()

    def run() -> None:
        try:
            say = partial(_set, found, do(), None)
        except BaseException as error:
            say = partial(_set, found, 0.0, error)
        with contextlib.suppress(RuntimeError):  # the learner has ended
            loop.call_soon_threadsafe(say)

    threading.Thread(target=run, name="handover", daemon=True).start()
    return found


def _set(found: "asyncio.Future[float]", value: float, error: BaseException | None) -> None:
    if found.done():
        return
    if error is not None:
        found.set_exception(error)
    else:
        found.set_result(value)


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
    manifest: WeightManifest, meeting: Meeting, device: "torch.device", given_up: Callable[[], bool]
) -> float:
    """Broadcasts a version to whoever comes, and waits until they have it; the seconds since they were there."""
    import torch

    where = device if meeting.place.transport == "nccl" else torch.device("cpu")
    with lock.held(manifest.manifest_path):  # whoever asked may be gone, and its hold with it
        flat_B = file.read_flat(manifest)
        ranks, begun = meeting.gathered(given_up), time.monotonic()
        with contextlib.closing(ranks):
            for piece in collective.pieces(manifest, meeting.place.piece_bytes):
                if given_up():
                    raise TemporaryError("the node gave up the hand-over")
                if piece.bytes:
                    ranks.broadcast(flat_B[piece.offset : piece.offset + piece.bytes].to(where))
            ranks.meet(where)
        return time.monotonic() - begun
