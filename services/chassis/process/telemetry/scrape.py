"""`/metrics`, where Prometheus reads a process: plain HTTP in a thread of its own.

Who asks needs the key of the metrics, or the secret of the ports from which it follows, where there
is one, as `Authorization: Bearer`.
"""

import contextlib
import hmac
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from banyan.runtime.secret import metrics_key

log = logging.getLogger(__name__)
PATH = "/metrics"
_PATIENCE_S = 5.0  # for the next part of a request, and for a reader that does not read
_LONGEST_S = 15.0  # for a whole answer: who sends a byte now and then must not keep a place
_MOST_AT_ONCE = 4


class Scrape:
    """The server of /metrics.

    read: gives OpenTelemetry's MetricsData.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read
        self._server: _Server | None = None
        self._target = Path()

    def start(self, listen: str, target: str) -> str:
        """Serve at host:port and return the address; write it to the file `target`, if any.

        Raise InvalidInput where that is not possible.
        """
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InvalidInput(f"BANYAN_METRICS_LISTEN={listen!r} must be host:port")
        secret_file = os.environ.get("BANYAN_SECRET_FILE", "")
        try:
            secret = Path(secret_file).read_text().strip() if secret_file else ""
            self._server = _Server((host.strip("[]"), int(port)), self._families, secret)
        except OSError as error:
            raise InvalidInput(
                f"cannot serve metrics at {listen}: {error.strerror}; name another address in"
                " BANYAN_METRICS_LISTEN, or none"
            ) from None
        address = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        if target:
            self._target = Path(target)
            _announce(self._target, address)
        return address

    def stop(self) -> None:
        """End the server, and withdraw its address."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            if self._target.name:
                self._target.unlink(missing_ok=True)

    def _families(self) -> Iterator[Any]:
        from services.chassis.process.telemetry.exposition import families

        return families(self._read())


def _announce(target: Path, address: str) -> None:
    """Write an address in the form in which Prometheus reads targets from files."""
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps([{"targets": [address], "labels": {"process": target.stem}}]))
    partial.rename(target)


class _Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 16

    def __init__(
        self, address: tuple[str, int], read: Callable[[], Iterator[Any]], secret: str
    ) -> None:
        super().__init__(address, _Handler)
        self.read = read
        self.keys = [key.encode() for key in (metrics_key(secret), secret)] if secret else []
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close at once if as many as may are being answered."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then give the place back."""
        late = threading.Timer(_LONGEST_S, _cut, [request])
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note that a reader went away, or sent nonsense: no traceback for it."""
        log.debug("a reader of metrics failed", exc_info=True)


def _cut(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE_S
    server_version, sys_version = "banyan", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(404, f"only {PATH} is here\n".encode())
        elif not self._knows():
            self._answer(401, b"send `Authorization: Bearer` with the key of the metrics\n")
        else:
            from prometheus_client.exposition import choose_encoder

            encoder, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encoder(_Registry(self.server.read)), kind)

    def _knows(self) -> bool:
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        keys = self.server.keys
        return not keys or any(hmac.compare_digest(sent, key) for key in keys)

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _Registry:
    """Prometheus' view of what there is to read."""

    def __init__(self, read: Callable[[], Iterator[Any]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Any]:
        return self._read()
