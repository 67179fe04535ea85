"""The page as an ASGI app: its API, its files, and the guard around both."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp

from banyan.errors import BanyanError, NotFound
from banyan.reasons import Reason
from services.gateway.page.api.endpoint import Call, Endpoint
from services.gateway.page.api.events import Events
from services.gateway.page.api.runs import Runs
from services.gateway.page.api.system import Queues, System
from services.gateway.page.api.trees import Trees
from services.gateway.page.api.writes import Writes
from services.gateway.page.control import Control
from services.gateway.page.documents import system_types
from services.gateway.page.heavy import Heavy
from services.gateway.page.http import openapi
from services.gateway.page.http.access import Access, Guard
from services.gateway.page.http.assets import Assets
from services.gateway.page.http.errors import HttpError, error_document, error_response
from services.gateway.page.http.streams import Hub
from services.gateway.page.reads import Reads
from services.gateway.page.run_clocks import RunClocks
from services.gateway.page.tree_reads import TreeReads

log = logging.getLogger(__name__)
_API = "/api"
VERSION = "1"  # of the API; it may gain members and endpoints
_REASONS = {404: Reason.NOT_FOUND, 405: Reason.NOT_IMPLEMENTED}


class Page:
    """The page of a store.

    endpoints: all of its API
    hub: its live streams

    state: the state folder
    control, queues: of a running system; None where nothing runs
    app: what a server serves
    """

    def __init__(
        self,
        reads: Reads,
        access: Access,
        state: Path,
        control: Control | None = None,
        queues: Queues | None = None,
    ) -> None:
        heavy, assets, self.hub = Heavy(), Assets(), Hub()
        whole, clocks = TreeReads(reads, heavy), RunClocks(reads)
        described = Endpoint(
            method="GET",
            path="/api/openapi.json",
            about="This document.",
            handler=self._describe,
            answers=system_types.OPENAPI,
        )
        self.endpoints: Sequence[Endpoint] = (
            *Runs(reads, heavy, clocks).endpoints(),
            *Trees(reads, whole).endpoints(),
            *Events(self.hub, reads, clocks, whole).endpoints(),
            *System(reads, state, queues).endpoints(),
            *Writes(reads, access, control).endpoints(),
            described,
        )
        self.app: ASGIApp = Guard(_routed(self.endpoints, assets), access)

    async def _describe(self, call: Call) -> dict[str, Any]:
        return openapi.document(self.endpoints, VERSION)


def _routed(endpoints: Sequence[Endpoint], assets: Assets) -> Starlette:
    async def asset(request: Request) -> Response:
        return assets.response(request.path_params["name"], request)

    async def page(request: Request) -> Response:
        name = request.path_params["path"]
        if "." in name or name == "api":
            raise NotFound(f"there is nothing at /{name[:200]}")
        return assets.response("index.html", request)

    routes = [
        Mount(_API, Router(_places(endpoints), redirect_slashes=False)),
        Route("/assets/{name:path}", asset),
        Route("/{path:path}", page),
    ]
    handlers: Any = {BanyanError: _on_error, HTTPException: _on_http}
    return Starlette(routes=routes, exception_handlers=handlers)


def _places(endpoints: Sequence[Endpoint]) -> list[Route]:
    """Return a route for each place of the API, with all its methods: a 405 names them."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [
        Route(path.removeprefix(_API), _handler(by_method), methods=list(by_method))
        for path, by_method in by_path.items()
    ]


def _handler(by_method: Mapping[str, Endpoint]) -> Any:
    async def handle(request: Request) -> Response:
        endpoint = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            return await endpoint(request)
        except (BanyanError, asyncio.CancelledError):
            raise
        except Exception as error:  # nobody outside sees what went wrong inside
            log.exception("the page failed on %s %s", endpoint.method, endpoint.path)
            message = f"the page failed ({type(error).__name__}); the gateway's log has more"
            raise HttpError(500, Reason.INTERNAL, message) from None

    return handle


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BanyanError)
    return error_response(error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = _REASONS.get(error.status_code, Reason.INVALID_INPUT)
    method, path = request.method, request.url.path[:200]
    response = error_document(error.status_code, reason, f"{method} {path}: {error.detail}")
    response.headers.update(error.headers or {})
    return response
