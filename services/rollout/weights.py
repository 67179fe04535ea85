"""Gets a policy's weights onto this host and checks their digest once (PROTOCOL 6).

The folder that the learner names is read in place if it is on this host; else the bytes come over gRPC in chunks, and a
broken transfer goes on where it stopped.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from banyan.errors import InvalidInput, NotFound
from banyan.v1 import learner_service_pb2
from services.chassis import private, weightfile, weighthold
from services.rollout.policies import Published

Fetch = Callable[[Published, int], AsyncIterator[learner_service_pb2.FetchWeightsResponse]]
_KEEP = 2


class Weights:
    """Weight files on this host. `fetch` streams a policy's bytes from an offset on; always, unless `local`."""

    def __init__(self, folder: Path, fetch: Fetch, local: bool = True) -> None:
        self._folder, self._fetch, self._local = folder, fetch, local
        self._checked: dict[Path, bytes] = {}

    @contextlib.asynccontextmanager
    async def held(self, published: Published) -> AsyncIterator[Path]:
        """Manifest of a policy's weights, their digest checked; nobody writes over them while it is held.

        Raises BanyanError; then another try may help.
        """
        local = published.folder / f"{published.name}.json"
        path = local if self._local and local.is_file() else await self._download(published)
        with weighthold.held(path):
            if self._checked.get(path) != published.policy.digest:
                await self._check(path, published)
            yield path

    async def _check(self, path: Path, published: Published) -> None:
        digest = published.policy.digest
        try:
            manifest = await asyncio.to_thread(weightfile.open_verified, path)
            if manifest.digest != digest:
                raise InvalidInput(f"{path} holds weights {manifest.digest.hex()[:12]}, not {digest.hex()[:12]}")
        except InvalidInput:
            if path.parent == self._folder:  # what was fetched is worth nothing; the next try begins anew
                path.unlink(missing_ok=True)
                path.with_suffix(".bin").unlink(missing_ok=True)
            raise
        self._checked = {path: digest}

    async def _download(self, published: Published) -> Path:
        target = self._folder / f"{published.name}.json"
        if target.is_file() and weightfile.from_json(target.read_text(), target).digest == published.policy.digest:
            return target
        private.folder(self._folder)
        part = self._folder / f"{published.policy.digest.hex()[:16]}.part"
        text, total = await self._receive(published, part)
        if not text or part.stat().st_size != total:
            raise NotFound(f"weights of step {published.policy.step} from {published.address} came without an end")
        part.replace(target.with_suffix(".bin"))
        aside = target.with_suffix(".aside")
        aside.write_text(text)
        aside.replace(target)
        self._tidy(target)
        return target

    async def _receive(self, published: Published, part: Path) -> tuple[str, int]:
        """Appends to what an earlier try left; the manifest and the size of the whole."""
        text, total = "", 0
        with open(part, "ab") as file:
            at = file.tell()
            async for piece in self._fetch(published, at):
                if piece.offset != at:
                    raise InvalidInput(f"weights came from byte {piece.offset} on where {at} was asked for")
                text, total = piece.manifest_json or text, piece.total
                await asyncio.to_thread(file.write, piece.data)
                at += len(piece.data)
        return text, total

    def _tidy(self, newest: Path) -> None:
        """Keeps the newest files; a mapped one that is deleted stays readable to who mapped it."""
        old = sorted(self._folder.glob("policy-*.json"), key=lambda p: p.stat().st_mtime)[:-_KEEP]
        for path in [p for p in old if p != newest]:
            path.unlink(missing_ok=True)
            path.with_suffix(".bin").unlink(missing_ok=True)
