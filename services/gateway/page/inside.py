"""The page inside the gateway: started behind the plain port, on a port of its own."""

import asyncio
import contextlib
import logging
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.process.process import cancelled

if TYPE_CHECKING:
    from services.gateway.page.control import RunControl

log = logging.getLogger(__name__)


class PageHost:
    """Host of the page.

    listen: host:port; empty for no page
    hosts: further host:port under which browsers may reach it, with commas between them
    free: whether reading on loopback needs no token
    secret: the token
    state: the state folder

    failure: set to the error that ends the page, and with it the gateway
    address: resolves to its host:port; empty without a page
    """

    def __init__(
        self,
        gateway: "RunControl",
        channel: grpc.aio.Channel,
        bus: Bus,
        *,
        listen: str,
        hosts: str,
        free: bool,
        secret: str,
        state: Path,
    ) -> None:
        self._gateway, self._channel, self._bus = gateway, channel, bus
        self._listen, self._hosts = listen, hosts
        self._free, self._secret, self._state = free, secret, state
        loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = loop.create_future()
        self.address: asyncio.Future[str] = loop.create_future()

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Begin to serve in the background, until the stack is left."""
        if not self._listen:
            return self.address.set_result("")
        serving = asyncio.create_task(self._serve(), name="page")
        stack.push_async_callback(cancelled, [serving])

    async def _serve(self) -> None:
        try:
            began = time.monotonic()
            # Starlette and uvicorn take some 0.2 s, in which a run is created.
            host = await asyncio.to_thread(import_module, "services.gateway.page.host")
            page = self._page()
            async with host.serving(page.app, page.hub, self._listen) as address:
                log.info("the page is at http://%s/ (%.2f s)", address, time.monotonic() - began)
                self.address.set_result(address)
                await asyncio.Event().wait()
        except Exception as error:  # whatever it is, a gateway without its page must not go on
            if not self.failure.done():
                self.failure.set_exception(error)

    def _page(self) -> Any:
        from services.gateway.page.app import Page
        from services.gateway.page.control import Control
        from services.gateway.page.http.access import Access
        from services.gateway.page.reads import Reads

        hosts = tuple(filter(None, self._hosts.replace(" ", "").split(",")))
        return Page(
            Reads(self._channel),
            Access(secret=self._secret, hosts=hosts, loopback_free=self._free),
            self._state,
            Control(self._gateway, self._channel, self._state),
            self._queues,
        )

    async def _queues(self) -> list[dict[str, Any]]:
        depths = await asyncio.gather(*(self._bus.depths(s.name or "") for s in subjects.STREAMS))
        return [
            {
                "stream": depth.stream,
                "consumer": depth.consumer,
                "waiting": depth.waiting,
                "unacknowledged": depth.unacknowledged,
            }
            for of_stream in depths
            for depth in of_stream
        ]
