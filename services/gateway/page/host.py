"""The page on a port: a socket of our own, and uvicorn on the loop of the process."""

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp

from banyan.errors import InvalidInput
from services.gateway.page.http.connection import Connection, most_connections
from services.gateway.page.http.streams import Hub

LISTEN_S = 15.0  # wait for a port that this process's predecessor may still hold
_POLL_S = 0.1
_ACCEPTED_AT_ONCE = 64  # connections of one turn of the loop
_MOST_HEAD = 16 << 10  # bytes of a request's line and headers while they are incomplete
_KEEP_ALIVE_S = 15
_GRACE_S = 1


class _Server(uvicorn.Server):
    """A server that leaves signals to the process that it is in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, hub: Hub, listen: str) -> AsyncIterator[str]:
    """Serve an app on host:port until the block is left; yield the address.

    Wait for a port that is in use. Raise InvalidInput if it still is, or if the address is another
    host's.
    """
    # Its starts and ends are ours, and a line for every bad request would fill the log.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    bound = await _bind(listen)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=most_connections(),
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=_MOST_HEAD,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[bound]), name="page")
    host, port = bound.getsockname()[:2]
    try:
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    finally:
        hub.close()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await running
        bound.close()


async def _bind(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"cannot listen on {listen!r}: it must be host:port")
    deadline = time.monotonic() + LISTEN_S
    while True:
        try:
            return _bound(host.strip("[]"), int(port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                words = error.strerror or error
                raise InvalidInput(f"cannot listen on {listen}: {words}") from None
            if time.monotonic() > deadline:
                raise InvalidInput(
                    f"cannot listen on {listen}: the port is in use, and was for {LISTEN_S:g} s;"
                    " choose another"
                ) from None
        await asyncio.sleep(_POLL_S)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError:
        bound.close()
        raise
    return bound
