"""The folder that weights are handed out from: a flat file per policy, in shared memory where it fits.

The newest policies are kept; the oldest one's pages are used for the next, unless a reader holds it. The pages of the first
ones are had before the first step, which else waits for them.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from banyan.errors import NotFound, TemporaryError
from services.chassis.process import private_files
from services.chassis.weights import file as weightfile
from services.chassis.weights.file import WeightManifest

KEEP = 3
_SHARED = Path("/dev/shm")


def choose_folder(wanted: Path | None, run_id: str, run_folder: Path, bytes_each: int) -> Path:
    """`wanted`, else shared memory if it holds the kept versions and one in the making, else the run's folder."""
    if wanted is not None:
        return wanted
    if _SHARED.is_dir() and shutil.disk_usage(_SHARED).free > 2 * (KEEP + 1) * bytes_each:
        return _SHARED / f"banyan-{run_id}"
    return run_folder / "weights"


class WeightFolder:
    """Weights by policy. Only its learner writes here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: list[WeightManifest] = []
        self._spares: list[Path] = []

    def reserve(self, bytes_each: int) -> None:
        """Gets room for the versions that are kept. Raises TemporaryError where there is none."""
        private_files.folder(self.folder)
        with self._room():
            for number in range(KEEP):
                path = self.folder / f".policy-spare-{number}.bin.{os.getpid()}"
                self._spares.append(path)
                with open(path, "w+b") as file:
                    weightfile.reserve(file, bytes_each)

    def put(
        self,
        tensors: Mapping[str, torch.Tensor],
        epoch: int,
        step: int,
        dtype: str,
        canary: Mapping[str, Any] | None = None,
        adapter: Mapping[str, Any] | None = None,
    ) -> WeightManifest:
        """Writes a new version; `adapter`: PEFT's configuration where it is one. Raises TemporaryError where there is no
        room."""
        with self._room():
            name, spare = f"policy-{epoch}-{step}", self._spare()
            return self._hold(
                weightfile.write(
                    self.folder, name, tensors, epoch, step, dtype, spare, canary, adapter
                )
            )

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TemporaryError(
                f"cannot write weights into {self.folder}: {error.strerror or error}; is there room?"
            ) from None

    def _spare(self) -> Path | None:
        """Pages to write the next version over."""
        if self._spares:
            return self._spares.pop()
        return self._held.pop(0).path if len(self._held) >= KEEP else None

    def repeat(self, epoch: int, step: int) -> WeightManifest:
        """The newest version under a new number: a step that changed nothing."""
        last = self._held[-1]
        path = self.folder / f"policy-{epoch}-{step}.bin"
        path.unlink(missing_ok=True)
        os.link(last.path, path)
        manifest = replace(last, path=path, epoch=epoch, step=step)
        aside = self.folder / f".policy-{epoch}-{step}.json.{os.getpid()}"
        aside.write_text(manifest.to_json())
        os.replace(aside, manifest.manifest_path)
        return self._hold(manifest)

    def _hold(self, manifest: WeightManifest) -> WeightManifest:
        self._held = [m for m in self._held if m.path != manifest.path] + [manifest]
        while len(self._held) > KEEP:
            self._remove(self._held.pop(0))
        return manifest

    def _remove(self, manifest: WeightManifest) -> None:
        manifest.manifest_path.unlink(
            missing_ok=True
        )  # first: there is no manifest without its weights
        manifest.path.unlink(missing_ok=True)

    def find(self, digest: bytes) -> WeightManifest:
        """The newest version with a digest. Raises NotFound where it is gone."""
        for manifest in reversed(self._held):
            if manifest.digest == digest:
                return manifest
        held = ", ".join(f"step {m.step}" for m in self._held) or "none"
        raise NotFound(
            f"weights {digest.hex()[:12]} are not here any more (held: {held}); fetch the newest policy instead"
        )

    def drop_foreign(self) -> None:
        """Removes files of earlier learners of the run, once a policy of this one is announced."""
        own = {p for m in self._held for p in (m.path, m.manifest_path)} | set(self._spares)
        for path in [
            *self.folder.glob("policy-*.json"),
            *self.folder.glob("policy-*.bin"),
            *self.folder.glob(".policy-*"),
        ]:
            if path not in own:
                path.unlink(missing_ok=True)

    def clean(self) -> None:
        """Removes what this learner wrote; a newer learner of the run may be writing beside it."""
        while self._held:
            self._remove(self._held.pop())
        while self._spares:
            self._spares.pop().unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
