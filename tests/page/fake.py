"""A small server of the HTTP API's contract, for tests of the page."""

import json
import mimetypes
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.page import documents as docs
from tests.page.state import Gateway

ASSETS = Path(__file__).parents[2] / "services" / "gateway" / "page" / "assets"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; font-src 'self'; frame-ancestors 'none'; base-uri 'none';"
    " form-action 'none'"
)
TOKEN = "secret of the fake"
COOKIE = "banyan_session=known"


class Handler(BaseHTTPRequestHandler):
    """Answers of the fake."""

    protocol_version = "HTTP/1.1"
    gateway: Gateway

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the requests are in Gateway.requests."""

    def do_GET(self) -> None:
        """Answer a read."""
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path.startswith("/api/"):
            self.gateway.requests.append(self.path)
        if url.path.startswith("/api/") and self.gateway.locked and not self.known():
            return self.refuse()
        time.sleep(next((s for part, s in self.gateway.delay.items() if part in url.path), 0))
        for part, (status, reason, message) in self.gateway.broken.items():
            if part in url.path:
                return self.send(status, {"error": {"reason": reason, "message": message}})
        if url.path.endswith("/events"):
            return self.stream(url.path)
        if url.path.startswith("/api/"):
            document = self.gateway.read(url.path, query)
            missing = {"error": {"reason": "NOT_FOUND", "message": f"There is no {url.path[5:]}."}}
            return self.send(200, document) if document else self.send(404, missing)
        return self.asset(url.path)

    def act(self) -> None:
        """Do what an action says, if the token is right."""
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse()
        if self.path == "/api/session":
            self.gateway.sessions += 1
            return self.send(200, {"seconds": 60}, cookie=f"{COOKIE}; HttpOnly; SameSite=Strict")
        self.gateway.actions.append((self.command, self.path, body))
        if self.path.endswith("/cancel"):
            self.gateway.states[self.path.split("/")[3]] = (
                "PAUSED" if body["pause"] else "CANCELLED"
            )
        if self.path.endswith("/replay"):
            self.gateway.letters -= 1
        return self.send(200, {})

    do_POST = do_DELETE = act

    def known(self) -> bool:
        """Return whether a read has the token, or the cookie of a session."""
        told = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        return told or COOKIE in (self.headers.get("Cookie") or "")

    def refuse(self) -> None:
        """Send what a wrong token is told."""
        message = "The token is not the one of this state folder."
        self.send(401, {"error": {"reason": "PERMISSION_DENIED", "message": message}})

    def asset(self, path: str) -> None:
        """Send a file of the page; the page itself for a path without a dot."""
        file = ASSETS / ("index.html" if "." not in path else path.removeprefix("/assets/"))
        if not file.is_file():
            return self.send(404, {"error": {"reason": "NOT_FOUND", "message": f"no {path}"}})
        return self.send(200, file.read_bytes(), mimetypes.guess_type(file.name)[0] or "text/plain")

    def send(
        self, status: int, content: Any, kind: str = "application/json", cookie: str = ""
    ) -> None:
        """Send a whole answer."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header(
            "Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text") else kind
        )
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", CSP)
        self.send_header("X-Content-Type-Options", "nosniff")
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        self.wfile.write(data)

    def stream(self, path: str) -> None:
        """Send events until the reader is gone."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        gateway, parts = self.gateway, path.strip("/").split("/")
        with gateway.changed:
            gateway.streams += 1
        last = None
        try:
            while not gateway.ended and not any(part in path for part in gateway.broken):
                if parts[1] == "trees":
                    event, now = "tree", gateway.trees[parts[2]]
                else:
                    done = gateway.steps[parts[2]]
                    new = [s for s in docs.steps(done, len(parts[2])) if s["step"] == done]
                    event, now = "news", gateway.detail(parts[2]) | {"steps": new}
                text = (
                    f"event: {event}\ndata: {json.dumps(now)}\n\n"
                    if now != last
                    else ": still here\n\n"
                )
                self.wfile.write(text.encode())
                last = now
                if parts[1] == "trees" and now["state"] not in ("GROWING", "SCORING"):
                    self.wfile.write(b'event: over\ndata: {"reason": null, "message": null}\n\n')
                    return
                with gateway.changed:
                    gateway.changed.wait(0.3)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with gateway.changed:
                gateway.streams -= 1


class Server(ThreadingHTTPServer):
    """A server that is quiet about browsers that leave."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what is not a connection that was closed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Fake:
    """A running fake: `address` is its root."""

    def __init__(self, port: int = 0) -> None:
        self.gateway = Gateway()
        handler = type("Bound", (Handler,), {"gateway": self.gateway})
        self.server = Server(("127.0.0.1", port), handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Stop serving."""
        self.gateway.ended = True
        self.gateway.change()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


if __name__ == "__main__":
    fake = Fake(8765)
    print(fake.address)
    while True:
        time.sleep(2)
        fake.gateway.grow()
        fake.gateway.step()
