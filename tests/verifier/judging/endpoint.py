"""An OpenAI-compatible endpoint on a free port, which answers as a test says."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], bytes]


class Endpoint:
    """What was asked, and how it is answered.

    asked: body of each request
    keys: its Authorization
    answer: reply to a request, by its number from 0 and its body
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answer: Callable[[int, dict[str, Any]], Reply] = lambda n, body: said("Score: 5")
        self.url = ""


def said(text: str | None, **usage: int) -> Reply:
    body = {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}
    return 200, {}, json.dumps(body).encode()


@contextlib.contextmanager
def endpoint() -> Iterator[Endpoint]:
    """Serve an endpoint until the end of the block."""
    made = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(body)
            made.keys.append(self.headers["Authorization"])
            assert self.path == "/v1/chat/completions"
            status, headers, data = made.answer(len(made.asked) - 1, body)
            self.send_response(status)
            for name, value in {"Content-Length": f"{len(data)}", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()
