"""Ways to a server: a program's standard streams, or HTTP."""

import contextlib
import http.client
import json
import os
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from banyan.environments.servers import ServerFailed

MOST = 4 << 20  # bytes that are read of a server in one step
_LAST_WORDS = 240  # bytes of a program's standard error that a message of 500 characters has
_END_S = 0.5  # that a program has to end once it has closed its output
_HTTP_S = 600.0  # of a silence; the step's own deadline comes before
Message = dict[str, Any]


class Transport(Protocol):
    """A way to a server."""

    def exchange(self, message: Message) -> Iterator[Message]:
        """Send a message, and yield those that come until the reader stops."""
        ...

    def send(self, message: Message) -> None:
        """Send a message that has no answer."""
        ...


class Stdio:
    """A program that reads and writes lines.

    It inherits the variables and the confinement of the step, and ends with it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except (OSError, ValueError) as error:  # ValueError for a NUL or a half character
            raise ServerFailed(f"it cannot be started: {error}") from None
        self._read, self._rest = 0, b""
        self._errors = b""  # the end of what it writes to its standard error
        # A thread, so that a server that writes much there never waits for a reader.
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def exchange(self, message: Message) -> Iterator[Message]:
        self.send(message)
        while True:
            yield _parsed(self._line())

    def send(self, message: Message) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_written(message) + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise self._ended()
            self._read = _bounded(self._read + len(part))
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while part := os.read(self._process.stderr.fileno(), 1 << 16):
            self._errors = (self._errors + part)[-_LAST_WORDS:]

    def _ended(self) -> ServerFailed:
        """Return the error of a server that has ended, with its status and its last words."""
        self._reader.join(_END_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        status, words = (
            self._process.returncode,
            " ".join(self._errors.decode(errors="replace").split()),
        )
        end = "" if status is None else f" with status {status}"
        return ServerFailed("it ended", f"{end}, and wrote at last: {words}" if words else end)


class Http:
    """A server behind a URL, with the protocol's streamable HTTP.

    token: value of the Authorization header, as a bearer; empty for none
    """

    def __init__(self, url: str, token: str = "") -> None:
        self._url, self._read = urllib.parse.urlsplit(url), 0
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }

    def exchange(self, message: Message) -> Iterator[Message]:
        with self._posted(message) as response:
            if response.headers.get_content_type() != "text/event-stream":
                body = response.read(MOST + 1)
                self._read = _bounded(self._read + len(body))
                yield _parsed(body)
                return
            yield from self._events(response)

    def send(self, message: Message) -> None:
        with self._posted(message):
            pass

    @contextlib.contextmanager
    def _posted(self, message: Message) -> Iterator[http.client.HTTPResponse]:
        secure = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._url.netloc, timeout=_HTTP_S)
        path = urllib.parse.urlunsplit(("", "", self._url.path or "/", self._url.query, ""))
        body = _written(message)
        try:
            connection.request("POST", path, body, self._headers)
            response = connection.getresponse()
            if response.status not in (200, 202):
                raise ServerFailed(f"it answered with HTTP status {response.status}")
            if session := response.headers.get("Mcp-Session-Id"):
                self._headers["Mcp-Session-Id"] = session
            yield response
        except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
            # The last two for names of hosts and sizes of chunks that are none.
            raise ServerFailed(f"it cannot be reached: {error!r:.200}") from None
        finally:
            connection.close()

    def _events(self, response: http.client.HTTPResponse) -> Iterator[Message]:
        """Yield the messages of a stream of server-sent events."""
        data: list[bytes] = []
        while line := response.readline(MOST):
            self._read = _bounded(self._read + len(line))
            field, _, value = line.rstrip(b"\r\n").partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif not field and not value and data:
                yield _parsed(b"\n".join(data))
                data = []


def of(server: Mapping[str, Any]) -> Transport:
    """Return the way to a server of a recipe. Raises ServerFailed without its token."""
    if "url" not in server:
        return Stdio(server["command"])
    name = server.get("token", "")
    if name and not os.environ.get(name):
        raise ServerFailed(f"its token {name} is not here: name it in environment.secrets, too")
    return Http(server["url"], os.environ[name] if name else "")


def _bounded(read: int) -> int:
    if read > MOST:
        raise ServerFailed(f"it wrote more than {MOST >> 20} MiB in one step")
    return read


def _written(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


def _parsed(data: bytes) -> Message:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise ServerFailed(f"it wrote {data[:60]!r}, which is no JSON") from None
    if not isinstance(message, dict):
        raise ServerFailed(f"it wrote {data[:60]!r}, which is no message")
    return message
