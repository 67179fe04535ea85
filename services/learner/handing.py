"""Hands weights over to nodes by collectives: weight store `nccl`, the learner's side (ADR 039).

A node asks and is told where to send its workers; a thread waits for them and broadcasts the flat file, which goes to the
accelerator piece by piece where NCCL carries it.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from banyan.errors import InvalidInput, TemporaryError
from banyan.v1 import learner_service_pb2 as messages
from services.chassis import handover, telemetry, weightfile, weighthold
from services.chassis.handover import Meeting
from services.chassis.weightfile import WeightManifest
from services.learner.weights import WeightFolder

log = logging.getLogger(__name__)

AT_ONCE = 8  # nodes; others ask again
_WAIT_S = 60.0
_MOST_WORKERS = 1024
_ANYWHERE = ("0.0.0.0", "::", "[::]", "")


class Hands:
    """Hand-overs of one learner. listen: host:port of its gRPC server; waits_s: how long nodes may let branches run before
    they take new weights."""

    def __init__(self, weights: WeightFolder, listen: str, waits_s: float = 0.0) -> None:
        self._weights, self._wait_s = weights, _WAIT_S + waits_s
        host = listen.rsplit(":", 1)[0].strip("[]")
        self._host = socket.gethostbyname(socket.gethostname()) if host in _ANYWHERE else host
        self._threads = ThreadPoolExecutor(AT_ONCE, "handover")
        self._under_way = 0

    async def over(self, request: messages.HandOverRequest) -> AsyncIterator[messages.HandOverResponse]:
        """Says where the ranks meet, then that all was sent. Raises BanyanError; the node asks again then.

        A node that hangs up ends it, unless its workers are there already.
        """
        if not 0 < request.workers <= _MOST_WORKERS:
            raise InvalidInput(f"a hand-over to {request.workers} workers; there are 1 to {_MOST_WORKERS}")
        if self._under_way >= AT_ONCE:
            raise TemporaryError(f"{AT_ONCE} nodes are handed weights; ask again in a second", 1.0)
        manifest = self._weights.find(request.digest)
        self._under_way += 1
        gave_up = threading.Event()
        try:
            with weighthold.held(manifest.manifest_path):
                run = asyncio.get_running_loop().run_in_executor
                meeting = await run(self._threads, self._open, request)
                yield _invitation(manifest, meeting)
                took_s = await run(self._threads, _send, manifest, meeting, gave_up)
            said = f"weights of step {manifest.step} handed over to node {request.node_id[:64]!r}, {request.workers} workers"
            log.info("%s, by %s: %d bytes in %.3f s", said, meeting.place.transport, manifest.bytes, took_s)
            telemetry.count("banyan.weights.sent", manifest.bytes)
            yield messages.HandOverResponse(sent_bytes=manifest.bytes)
        finally:
            gave_up.set()
            self._under_way -= 1

    def _open(self, request: messages.HandOverRequest) -> Meeting:
        transport = handover.choose(handover.devices(), list(request.devices))
        return Meeting(self._host, transport, request.workers, self._wait_s)

    def close(self) -> None:
        """Takes no more. What is under way ends by itself, in a minute at most."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _invitation(manifest: WeightManifest, meeting: Meeting) -> messages.HandOverResponse:
    place = meeting.place
    return messages.HandOverResponse(
        manifest_json=manifest.to_json(),
        host=place.host,
        port=place.port,
        token=place.token,
        transport=place.transport,
        wait_s=place.wait_s,
        piece_bytes=place.piece_bytes,
    )


def _send(manifest: WeightManifest, meeting: Meeting, gave_up: threading.Event) -> float:
    """Broadcasts a version to whoever comes, and waits until they have it; the seconds since they were there."""
    import torch

    device = torch.device("cuda" if meeting.place.transport == "nccl" else "cpu")
    with weighthold.held(manifest.manifest_path):  # whoever asked may be gone, and its hold with it
        flat_B = weightfile.read_flat(manifest)
        ranks, begun = meeting.gathered(gave_up.is_set), time.monotonic()
        with contextlib.closing(ranks):
            for piece in handover.pieces(manifest, meeting.place.piece_bytes):
                if piece.bytes:
                    ranks.broadcast(flat_B[piece.offset : piece.offset + piece.bytes].to(device))
            ranks.meet(device)
        return time.monotonic() - begun
