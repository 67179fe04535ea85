"""Transfer of a policy's weights onto this host, with one check of their digest.

See docs/protocol.md, Weights. Weight store `file`: the learner's folder is read in place if it is
on this host; otherwise the bytes come over gRPC in chunks, and a broken transfer goes on where it
stopped. Weight store `nats`: the weights are rebuilt from the run's object store (delta_fetch.py),
and come over gRPC only where the recipe allows it.
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
"""Call of the learner: (policy, offset in bytes) → the bytes from there on."""

_KEEP = 2


class Weights:
    """Weight files on this host.

    folder: folder for files that are fetched or rebuilt.
    fetch: call that streams a policy's bytes; with a rebuilder, the fallback that the recipe
        allows, or None.
    local: whether the learner's folder is read in place if it is on this host; not with a
        rebuilder.
    rebuilder: builder of weights from an object store.
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
        self._checked: dict[Path, bytes] = {}  # manifest → digest

    @contextlib.asynccontextmanager
    async def held(self, published: Published) -> AsyncIterator[Path]:
        """Provide the manifest of a policy's weights, whose digest was checked.

        The file is locked within the block, so that no process writes over it.

        Raises BanyanError; another try may help.
        """
        local = published.folder / f"{published.name}.json"
        is_local = self._local and local.is_file()
        path = local if is_local else await self._download(published)
        with lock.held(path):
            if self._checked.get(path) != published.policy.digest:
                await self._check(path, published)
            yield path

    async def _check(self, path: Path, published: Published) -> None:
        """Raise InvalidInput unless a file holds the policy; delete a wrong file of this node."""
        digest = published.policy.digest
        try:
            manifest = await asyncio.to_thread(weightfile.open_verified, path)
            if manifest.digest != digest:
                raise InvalidInput(
                    f"{path} holds weights {manifest.digest.hex()[:12]}, not {digest.hex()[:12]}"
                )
        except InvalidInput:
            if path.parent == self._folder:  # the next try fetches it anew
                path.unlink(missing_ok=True)
                path.with_suffix(".bin").unlink(missing_ok=True)
            raise
        self._checked = {path: digest}

    async def _download(self, published: Published) -> Path:
        """Return the manifest of a policy in this node's folder; fetch the policy if needed."""
        target = self._folder / f"{published.name}.json"
        if self._is_present(target, published.policy.digest):
            return target
        try:
            private_files.folder(self._folder)
            part, manifest_text = await self._bring(published)
            part.replace(target.with_suffix(".bin"))
            aside = target.with_suffix(".aside")
            aside.write_text(manifest_text)
            aside.replace(target)
            self._tidy(target)
        except BanyanError:  # a missed deadline is an OSError too
            raise
        except OSError as error:
            problem = error.strerror or error
            raise TemporaryError(
                f"cannot write weights to {self._folder}: {problem}; is there room?"
            ) from None
        return target

    @staticmethod
    def _is_present(target: Path, digest: bytes) -> bool:
        """Tell whether a policy was fetched before. A manifest that a loss of power damaged does
        not count."""
        try:
            if not target.is_file():
                return False
            return weightfile.from_json(target.read_text(), target).digest == digest
        except (InvalidInput, UnicodeDecodeError):
            return False

    async def _bring(self, published: Published) -> tuple[Path, str]:
        """Return a file with the bytes of a policy, and the text of their manifest."""
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
        for other in self._folder.glob("*.part"):  # of broken transfers of older policies
            if other != part:
                other.unlink()
        manifest_text, total = await self._receive(self._fetch, published, part)
        if not manifest_text or part.stat().st_size != total:
            raise NotFound(
                f"weights of step {published.policy.step} from {published.address} came without an"
                " end"
            )
        return part, manifest_text

    async def _receive(self, fetch: Fetch, published: Published, part: Path) -> tuple[str, int]:
        """Append to the bytes of an earlier try; return the manifest and the size of the whole."""
        manifest_text, total = "", 0
        with open(part, "ab") as file:
            offset = file.tell()
            async for piece in fetch(published, offset):
                if piece.offset != offset:
                    raise InvalidInput(
                        f"weights came from byte {piece.offset} on where {offset} was asked for"
                    )
                manifest_text = piece.manifest_json or manifest_text
                total = piece.total
                await asyncio.to_thread(file.write, piece.data)
                offset += len(piece.data)
        return manifest_text, total

    def _tidy(self, newest: Path) -> None:
        """Delete all but the newest files; a mapped file stays readable to its process."""
        manifests = sorted(self._folder.glob("policy-*.json"), key=lambda p: p.stat().st_mtime)
        for path in manifests[:-_KEEP]:
            if path != newest:
                path.unlink(missing_ok=True)
                path.with_suffix(".bin").unlink(missing_ok=True)
        for path in self._folder.glob("*.rebuilt"):  # of a node that was killed meanwhile
            path.unlink(missing_ok=True)
