"""Gets a policy's weights onto this host and checks their digest once (PROTOCOL 6).

Weight store `file`: the folder that the learner names is read in place if it is on this host; else the bytes come over gRPC
in chunks, and a broken transfer goes on where it stopped. Weight store `nats`: they are rebuilt from the run's object store
(rebuild.py), and come over gRPC only where the recipe says so.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from banyan.errors import BanyanError, InvalidInput, NotFound, TemporaryError
from banyan.v1 import learner_service_pb2
from services.chassis.process import private_files, telemetry
from services.chassis.weights import file as weightfile
from services.chassis.weights import lock
from services.rollout.growth.policy_selection import Published
from services.rollout.weights.delta_fetch import Rebuilder

log = logging.getLogger(__name__)

Fetch = Callable[[Published, int], AsyncIterator[learner_service_pb2.FetchWeightsResponse]]
_KEEP = 2


class Weights:
    """Weight files on this host. `fetch` streams a policy's bytes from an offset on; always, unless `local`.

    With a `rebuilder` nothing is read in place, and `fetch` is what the recipe lets it fall back to, if it does.
    """

    def __init__(
        self,
        folder: Path,
        fetch: Fetch | None,
        local: bool = True,
        rebuilder: Rebuilder | None = None,
    ) -> None:
        self._folder, self._fetch, self._rebuilder = folder, fetch, rebuilder
        self._local = local and rebuilder is None
        self._checked: dict[Path, bytes] = {}

    @contextlib.asynccontextmanager
    async def held(self, published: Published) -> AsyncIterator[Path]:
        """Manifest of a policy's weights, their digest checked; nobody writes over them while it is held.

        Raises BanyanError; then another try may help.
        """
        local = published.folder / f"{published.name}.json"
        path = local if self._local and local.is_file() else await self._download(published)
        with lock.held(path):
            if self._checked.get(path) != published.policy.digest:
                await self._check(path, published)
            yield path

    async def _check(self, path: Path, published: Published) -> None:
        digest = published.policy.digest
        try:
            manifest = await asyncio.to_thread(weightfile.open_verified, path)
            if manifest.digest != digest:
                raise InvalidInput(
                    f"{path} holds weights {manifest.digest.hex()[:12]}, not {digest.hex()[:12]}"
                )
        except InvalidInput:
            if (
                path.parent == self._folder
            ):  # what was fetched is worth nothing; the next try begins anew
                path.unlink(missing_ok=True)
                path.with_suffix(".bin").unlink(missing_ok=True)
            raise
        self._checked = {path: digest}

    async def _download(self, published: Published) -> Path:
        target = self._folder / f"{published.name}.json"
        if self._has(target, published.policy.digest):
            return target
        try:
            private_files.folder(self._folder)
            part, text = await self._bring(published)
            part.replace(target.with_suffix(".bin"))
            aside = target.with_suffix(".aside")
            aside.write_text(text)
            aside.replace(target)
            self._tidy(target)
        except BanyanError:  # a missed deadline is an OSError too
            raise
        except OSError as error:
            raise TemporaryError(
                f"cannot write weights to {self._folder}: {error.strerror or error}; is there room?"
            ) from None
        return target

    @staticmethod
    def _has(target: Path, digest: bytes) -> bool:
        """Whether the policy was fetched before. What a host that lost power left of a manifest is none."""
        try:
            return (
                target.is_file()
                and weightfile.from_json(target.read_text(), target).digest == digest
            )
        except (InvalidInput, UnicodeDecodeError):
            return False

    async def _bring(self, published: Published) -> tuple[Path, str]:
        """A file with the bytes of a policy's weights, and their manifest."""
        stem = self._folder / published.policy.digest.hex()[:16]
        if self._rebuilder is not None:
            try:
                part = stem.with_suffix(".rebuilt")
                return part, await self._rebuilder.rebuild(published, part, self._checked)
            except BanyanError as error:
                if self._fetch is None:
                    raise
                log.warning(
                    "%s; fetching it from the learner, as resources.weights_fallback says", error
                )
                telemetry.count("banyan.weights.fallbacks")
        assert self._fetch is not None, "weights come from somewhere"
        part = stem.with_suffix(".part")
        for other in self._folder.glob(
            "*.part"
        ):  # of transfers that broke and were overtaken by newer policies
            if other != part:
                other.unlink()
        text, total = await self._receive(self._fetch, published, part)
        if not text or part.stat().st_size != total:
            raise NotFound(
                f"weights of step {published.policy.step} from {published.address} came without an end"
            )
        return part, text

    async def _receive(self, fetch: Fetch, published: Published, part: Path) -> tuple[str, int]:
        """Appends to what an earlier try left; the manifest and the size of the whole."""
        text, total = "", 0
        with open(part, "ab") as file:
            at = file.tell()
            async for piece in fetch(published, at):
                if piece.offset != at:
                    raise InvalidInput(
                        f"weights came from byte {piece.offset} on where {at} was asked for"
                    )
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
        for path in self._folder.glob("*.rebuilt"):  # of a node that was killed at it
            path.unlink(missing_ok=True)
