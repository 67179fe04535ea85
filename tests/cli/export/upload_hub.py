"""A hub on a port of this machine that takes models: it notes what is uploaded to it.

A hub that is reached over the network is not at hand where tests run. Files come in the commit
itself, which the real hub asks for where they are small; large ones go another way there.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TOKEN = "hf_right"


@dataclass
class UploadHub:
    """A hub: the files of its repositories, which are private, and whether it is out of order."""

    address: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    broken: bool = False

    def answer(self, path: str, token: str, body: bytes) -> tuple[int, Any]:
        """Return status and document."""
        if self.broken:
            return 500, {"error": "out of order"}
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid credentials"}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.private.setdefault(name, asked.get("visibility") == "private")
            self.files.setdefault(name, {})
            return 200, {"url": f"{self.address}/{name}", "name": name}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        name = "/".join(path.split("/")[3:5])
        if name not in self.files:
            return 404, {"error": f"no repository {name}"}
        if "/preupload/" in path:
            files = [f["path"] for f in json.loads(body)["files"]]
            modes = [{"path": f, "uploadMode": "regular", "shouldIgnore": False} for f in files]
            return 200, {"files": modes, "commitOid": "0" * 40}
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.files[name][value["path"]] = base64.b64decode(value["content"])
            return 200, {"commitUrl": f"{self.address}/{name}/commit/1", "commitOid": "1" * 40}
        return 200, {"id": name, "sha": "0" * 40, "siblings": [], "private": self.private[name]}


@contextmanager
def serving() -> Iterator[UploadHub]:
    hub = UploadHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            token = self.headers.get("authorization") or ""
            status, document = hub.answer(urlsplit(self.path).path, token, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_POST = do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
