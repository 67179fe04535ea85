"""The packaged files of the page, in memory: types, tags, and headers for caches."""

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from banyan.errors import NotFound

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
}
_OTHER = "application/octet-stream"


class Assets:
    """The files of a package folder, read once."""

    def __init__(self, package: str = "services.gateway.page", folder: str = "assets") -> None:
        self._files: dict[str, tuple[bytes, str]] = {}
        self._add(resources.files(package) / folder, "")

    def _add(self, at: Traversable, name: str) -> None:
        for entry in at.iterdir():
            below = f"{name}{entry.name}"
            if entry.is_dir():
                self._add(entry, f"{below}/")
            else:
                data = entry.read_bytes()
                self._files[below] = data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'

    def response(self, name: str, request: Request) -> Response:
        """Return a file; 304 to a browser that has it. Raise NotFound.

        A browser asks each time whether its copy holds: files of another version have no other
        names.
        """
        if name not in self._files:
            raise NotFound(f"there is no file {name[:200]!r} on this page")
        data, tag = self._files[name]
        headers = {"etag": tag, "cache-control": "no-cache"}
        known = [t.strip().removeprefix("W/") for t in _header(request, "if-none-match").split(",")]
        if tag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        kind = TYPES.get(name.rpartition(".")[2].lower(), _OTHER)
        return Response(data, media_type=None, headers=headers | {"content-type": kind})


def _header(request: Request, name: str) -> str:
    return str(request.headers.get(name, ""))
