"""Access to the page: hosts, origins, tokens, sizes, and the headers of every response.

The outermost layer of the app. It lets nothing through that a page of another site could have sent
(DNS rebinding, cross-site requests), and no error out that it did not word itself.
"""

import hashlib
import hmac
import ipaddress
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from banyan.errors import BanyanError
from banyan.reasons import Reason
from services.gateway.page.http.errors import HttpError, error_response
from services.gateway.page.http.sender import WRITE_S, Cut, Sender

log = logging.getLogger(__name__)

COOKIE = "banyan_session"
SESSION_S = 12 * 3600
MOST_BODY = 4096  # bytes of a request's body
MOST_QUERY = 2048  # bytes of a request's query
MOST_HEADERS = 16 << 10  # bytes of a request's headers, however they arrive
_SAFE = ("GET", "HEAD")
_FREE = ("/api/openapi.json",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Rules of access.

    secret: the token; empty where nothing may be changed and no other host reads
    hosts: further host:port that the Host header may name, beside the address that is listened on
    loopback_free: reading on loopback needs no token
    """

    secret: str
    hosts: Sequence[str] = ()
    loopback_free: bool = True

    def session(self, now: float) -> str:
        """Return a session for a cookie: good for reading, until its time."""
        until = str(int(now) + SESSION_S)
        return f"{until}.{self._code(until)}"

    def knows_session(self, cookie: str, now: float) -> bool:
        """Return whether a cookie holds a session that is valid."""
        until, _, code = cookie.partition(".")
        right = hmac.compare_digest(code.encode(), self._code(until).encode())
        return bool(self.secret) and right and until.isdigit() and now < int(until)

    def knows_token(self, authorization: str) -> bool:
        """Return whether a header holds the token. The time that it takes tells nothing."""
        scheme, _, token = authorization.partition(" ")
        right = hmac.compare_digest(token.strip().encode(), self.secret.encode())
        return bool(self.secret) and scheme.lower() == "bearer" and right

    def _code(self, until: str) -> str:
        key = self.secret.encode()
        return hmac.new(key, f"page session {until}".encode(), hashlib.sha256).hexdigest()


class Guard:
    """ASGI layer that checks a request before the app sees it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no web sockets; uvicorn is started without lifespan
        sender = Sender(send)
        try:
            self._check(scope)
            await self._app(scope, _bounded(receive), sender)
        except BanyanError as error:
            await self._refuse(error, scope, receive, sender)
        except Cut:
            log.info("a reader of %s took nothing for %.0f s; it is cut", scope["path"], WRITE_S)
        except Exception:  # nobody outside sees what went wrong inside
            log.exception("the page failed on %s %s", scope["method"], scope["path"])
            failure = HttpError(500, Reason.INTERNAL, "the page failed; the log has more")
            await self._refuse(failure, scope, receive, sender)

    async def _refuse(
        self, error: BanyanError, scope: Scope, receive: Receive, sender: Sender
    ) -> None:
        if sender.started:
            return sender.abort()
        await error_response(error)(scope, receive, sender)

    def _check(self, scope: Scope) -> None:
        """Raise HttpError for a request that is not let in."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADERS:
            raise HttpError(
                431, Reason.INVALID_INPUT, f"the headers are over {MOST_HEADERS} bytes; send fewer"
            )
        headers = _headers(scope)
        host = self._check_host(scope, headers)
        if len(scope.get("query_string", b"")) > MOST_QUERY:
            raise HttpError(
                414, Reason.INVALID_INPUT, f"the query is over {MOST_QUERY} bytes; shorten it"
            )
        length = headers.get("content-length", ["0"])[0]
        if not length.isdigit() or int(length) > MOST_BODY:
            raise too_large()
        safe, api = scope["method"] in _SAFE, scope["path"].startswith("/api/")
        if api:
            self._check_origin(headers, host, safe)
        if api and scope["path"] not in _FREE:
            self._check_token(scope, headers, safe)

    def _check_host(self, scope: Scope, headers: dict[str, list[str]]) -> str:
        """Return the Host header. Raise HttpError unless it names this server."""
        named = headers.get("host", [])
        server = scope.get("server") or ("", 0)
        port = server[1]
        here = {f"{_bracketed(str(server[0]))}:{port}", *self._access.hosts}
        if _is_loopback(str(server[0])):
            here |= {f"{name}:{port}" for name in ("localhost", "127.0.0.1", "[::1]")}
        if len(named) != 1 or named[0].lower() not in {name.lower() for name in here}:
            raise HttpError(
                421,
                Reason.INVALID_INPUT,
                f"Host {', '.join(named)[:200]!r} is not this server, which is "
                f"{', '.join(sorted(here))}; further names: BANYAN_HTTP_HOSTS",
            )
        return named[0]

    def _check_origin(self, headers: dict[str, list[str]], host: str, safe: bool) -> None:
        for origin in headers.get("origin", []):
            if origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
                raise HttpError(
                    403,
                    Reason.PERMISSION_DENIED,
                    f"Origin {origin[:200]!r} is another site; only this page may ask",
                )
        if headers.get("sec-fetch-site", ["none"])[0] not in ("none", "same-origin"):
            raise HttpError(
                403, Reason.PERMISSION_DENIED, "the request comes from a page of another site"
            )

    def _check_token(self, scope: Scope, headers: dict[str, list[str]], safe: bool) -> None:
        access = self._access
        server = scope.get("server") or ("", 0)
        if safe and access.loopback_free and _is_loopback(str(server[0])):
            return
        given = headers.get("authorization", [])
        if len(given) == 1 and access.knows_token(given[0]):
            return
        if safe and any(access.knows_session(c, time.time()) for c in _cookies(headers)):
            return
        raise HttpError(
            401,
            Reason.PERMISSION_DENIED,
            "this needs the token: `Authorization: Bearer` with the content of the file `secret`"
            " in the state folder",
        )


def _bounded(receive: Receive) -> Receive:
    """Return a receiver that raises HttpError once a body is too large, however it is sent."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MOST_BODY:
            raise too_large()
        return message

    return bounded


def too_large() -> HttpError:
    """Return the error of a body over the limit."""
    return HttpError(
        413, Reason.RESOURCE_EXHAUSTED, f"a request's body holds at most {MOST_BODY} bytes"
    )


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _cookies(headers: dict[str, list[str]]) -> list[str]:
    pairs = (part.strip().partition("=") for part in ";".join(headers.get("cookie", [])).split(";"))
    return [value for name, _, value in pairs if name == COOKIE]


def _is_loopback(host: str) -> bool:
    try:
        address: Any = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
