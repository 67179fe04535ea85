"""A connection of the page: how many there may be at once, and how long one may be idle or slow.

uvicorn alone accepts without a limit and waits without an end for a request. The gateway drives
runs, so a program that opens connections must not take its file descriptors.
"""

import asyncio
import logging
import resource
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)
MOST_CONNECTIONS = 256  # further requests are answered 503
MORE = 64  # connections beyond, which get that answer; the next ones are dropped at once
REQUEST_S = 20.0
"""Seconds for the head of a request, from the connection's start or the response before it; and for
the reader to take the end of a response."""
_LOG_S = 60.0  # between two lines on dropped connections
_SHARE = 4  # the page's connections have at most a fourth of this process's descriptors


def most_connections() -> int:
    """Return how many connections are answered at once, by this process's limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, soft // _SHARE))


class Connection(H11Protocol):
    """uvicorn's connection with a deadline for requests, dropped where there are too many."""

    _due: asyncio.TimerHandle | None = None
    _logged = float("-inf")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; drop the connection if too many are open."""
        super().connection_made(transport)
        if len(self.connections) <= (self.limit_concurrency or MOST_CONNECTIONS) + MORE:
            return self._wait()
        transport.abort()
        if time.monotonic() - Connection._logged > _LOG_S:
            Connection._logged = time.monotonic()
            log.warning(
                "%d connections to the page are open; more are dropped", len(self.connections) - 1
            )

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; its head has a deadline."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        super().connection_lost(exc)
        self._forget()

    def _wait(self) -> None:
        """Have a deadline while no request is being answered, and none while one is."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._due is None:
            self._due = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
