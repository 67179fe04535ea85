"""MCP servers behind a URL: plain and streamed answers, sessions, tokens, and what is refused."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import pytest_asyncio

from banyan import registry
from banyan.environments.hosting import Hosting
from banyan.errors import InvalidInput, Refused
from services.verifier.environments.hosts import Hosts
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.verifier.hosted.test_external import step
from tests.verifier.hosted.test_tools import call

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTING = Hosting(end="", seconds=5.0, network=True)


@dataclass
class Served:
    """A server that streams its answers, or not, and notes what it was asked.

    fault: an answer in place of all others
    padding: bytes of blanks behind each answer
    """

    streams: bool = False
    fault: tuple[int, bytes] | None = None
    padding: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        match message["method"]:
            case "initialize":
                return {"protocolVersion": "2025-06-18", "capabilities": {}}
            case "tools/list":
                return {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                text = message["params"]["arguments"]["text"]
                return {"content": [{"type": "text", "text": text}]}
        return None

    def body(self, message: dict[str, Any]) -> bytes:
        result = self.answer(message)
        if result is None:
            return b""
        said = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        if not self.streams:
            return said.encode() + b" " * self.padding
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
        lines = said.replace(", ", ",\ndata: ")  # an event may have its data in several lines
        events = f": hello\n\nevent: message\ndata: {note}\n\ndata: {lines}\n\n"
        return b":" + b" " * self.padding + b"\n" + events.encode()


def handler(served: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            served.headers.append(dict(self.headers.items()))
            data = self.rfile.read(int(self.headers["Content-Length"]))
            status, body = served.fault or (200, served.body(json.loads(data)))
            self.send_response(status if body else 202)
            kind = "text/event-stream" if served.streams else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Mcp-Session-Id", "session 1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@pytest.fixture
def served() -> Iterator[tuple[Served, str]]:
    made = Served()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield made, f"http://127.0.0.1:{server.server_port}/mcp?a=b"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANYAN_TEST_WORD", "given")
        limits = Limits(deadline_s=5.0, network=True, secrets=("BANYAN_TEST_WORD",))
        pool = Pool(limits, width=1)
        yield Hosts(pool)
        await pool.close()


async def answered(hosts: Hosts, url: str, hosting: Hosting = HOSTING, **more: Any) -> str:
    """Return the answer to a call, once the digest of the schemas is known."""
    server = {"url": url, "tools": {"echo": "none"}, **more}
    said = call("echo", text="hello")
    environment: Any = registry.environment("tools", {"servers": [server]}, hosting)
    with pytest.raises(Refused, match="schemas is none") as raised:
        await step(hosts, environment, environment.reset({}, 0), said)
    server["schemas"] = str(raised.value).rpartition("schemas: ")[2]
    environment = registry.environment("tools", {"servers": [server]}, hosting)
    text: str = (await step(hosts, environment, environment.reset({}, 0), said)).text
    return text


@pytest.mark.parametrize("streams", [False, True])
async def test_answers_come_plain_or_streamed(
    hosts: Hosts, served: tuple[Served, str], streams: bool
) -> None:
    there, url = served
    there.streams = streams
    assert await answered(hosts, url) == "hello"
    sessions = [headers.get("Mcp-Session-Id") for headers in there.headers[-4:]]
    assert sessions == [None, *["session 1"] * 3]
    assert not any("Authorization" in headers for headers in there.headers)


async def test_a_token_is_a_secret_that_the_recipe_names_twice(
    hosts: Hosts, served: tuple[Served, str]
) -> None:
    there, url = served
    named = replace(HOSTING, secrets=("BANYAN_TEST_WORD",))
    assert await answered(hosts, url, named, token="BANYAN_TEST_WORD") == "hello"
    assert {headers["Authorization"] for headers in there.headers} == {"Bearer given"}
    with pytest.raises(InvalidInput, match=r"name it in environment\.secrets"):
        await answered(hosts, url, HOSTING, token="BANYAN_TEST_WORD")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((500, b"no"), "it answered with HTTP status 500"),
        ((302, b"elsewhere"), "it answered with HTTP status 302"),
        ((200, b"<html>"), "which is no JSON"),
        ((200, b"x" * (5 << 20)), "more than 4 MiB"),
        ((200, b'{"jsonrpc": "2.0", "id": 7, "result": {}}'), "ended its answer to initialize"),
    ],
)
async def test_a_server_that_fails_is_no_fault_of_the_action(
    hosts: Hosts, served: tuple[Served, str], fault: tuple[int, bytes], message: str
) -> None:
    served[0].fault = fault
    with pytest.raises(InvalidInput, match=message):
        await answered(hosts, served[1])


@pytest.mark.parametrize("streams", [False, True])
async def test_what_a_server_writes_is_bounded_in_sum(
    hosts: Hosts, served: tuple[Served, str], streams: bool
) -> None:
    served[0].streams, served[0].padding = streams, 3 << 20
    with pytest.raises(InvalidInput, match="it wrote more than 4 MiB in one step"):
        await answered(hosts, served[1])


async def test_without_the_network_no_server_is_reached(
    hosts: Hosts, served: tuple[Served, str]
) -> None:
    with pytest.raises(InvalidInput, match="it cannot be reached"):
        await answered(hosts, served[1], replace(HOSTING, network=False))
    assert not served[0].headers
