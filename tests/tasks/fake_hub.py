"""A hub on a port of this machine, with the part of its interface that reading data sets needs.

A hub that is reached over the network is not at hand where tests run.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class FakeHub:
    """A hub: files of data sets by repository and commit, and what was asked of it."""

    address: str = ""
    commits: dict[str, dict[str, Mapping[str, bytes]]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: bool = False
    requests: list[str] = field(default_factory=list)

    def put(self, repo: str, files: Mapping[str, bytes]) -> str:
        """Add a commit with these files; the newest is `main`."""
        commits = self.commits.setdefault(repo, {})
        commit = sha1(repr((repo, len(commits), sorted(files.items()))).encode()).hexdigest()
        commits[commit] = files
        return commit


@contextmanager
def served() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(_Handler):
        def answer(self) -> tuple[int, dict[str, str], bytes]:
            return answered(hub, self.path)

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        raise NotImplementedError

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        self.rfile.read(length)
        status, headers, body = self.answer()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET
    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        pass


def answered(hub: FakeHub, target: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body."""
    path = unquote(urlsplit(target).path)
    hub.requests.append(path)
    if hub.broken:
        return 503, {}, b"out of order"
    found = re.fullmatch(
        r"/(?:api/)?datasets/([^/]+/[^/]+?)"
        r"(?:/(revision|resolve|tree)/([^/]+)(?:/(.*))?)?",
        path,
    )
    if found is None or found[1] not in hub.commits:
        return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
    repo, kind, revision, name = found.groups()
    commits = hub.commits[repo]
    commit = list(commits)[-1] if revision in (None, "main") else revision
    if commit not in commits:
        return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
    if kind == "resolve":
        return _file(hub, repo, commit, name or "")
    files = commits[commit]
    if kind == "tree":
        return 200, {}, json.dumps(list(_tree(files, name or ""))).encode()
    siblings = [{"rfilename": file} for file in files]
    info = {"id": repo, "sha": commit, "siblings": siblings, "private": False}
    return 200, {}, json.dumps({**info, "gated": repo in hub.gated, "tags": []}).encode()


def _tree(files: Mapping[str, bytes], folder: str) -> Iterator[dict[str, Any]]:
    """Yield files and folders directly below a folder."""
    before = f"{folder}/" if folder else ""
    below = {file.removeprefix(before): file for file in files if file.startswith(before)}
    for name in sorted({name.split("/")[0] for name in below}):
        if name in below:
            data = files[below[name]]
            size = {"type": "file", "size": len(data)}
        else:
            data, size = b"", {"type": "directory", "size": 0}
        yield {**size, "path": before + name, "oid": sha1(data).hexdigest()}


def _file(hub: FakeHub, repo: str, commit: str, name: str) -> tuple[int, dict[str, str], bytes]:
    if repo in hub.gated:
        return 401, {"X-Error-Code": "GatedRepo"}, b"{}"
    data = hub.commits[repo][commit].get(name)
    if data is None:
        return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
    return 200, {"X-Repo-Commit": commit, "ETag": f'"{sha1(data).hexdigest()}"'}, data
