"""`banyan page` where a system runs: whether reading its page needs the token."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from banyan.cli.page import _reading


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve one status; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path.startswith("/api/runs?") and not self.headers["Authorization"]
            self.send_response(request.param)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.parametrize(
    ("answering", "words"),
    [
        (200, "reading it on this machine needs no token"),
        (401, "reading it needs the token, which is in the file secret of the state folder"),
        (503, "it answers with status 503: see the gateway's log"),
    ],
    indirect=["answering"],
)
def test_what_reading_needs_is_told_by_the_page_itself(answering: str, words: str) -> None:
    assert _reading(answering) == words


def test_a_page_that_does_not_answer_is_said_not_to() -> None:
    assert _reading("http://127.0.0.1:9").startswith("it does not answer yet (")
