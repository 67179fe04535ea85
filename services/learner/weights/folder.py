"""The folder of published weights: a flat file per policy, in shared memory where it fits.

The newest policies are kept; the oldest one's pages are used for the next, unless a reader holds
it. The pages of the first ones are allocated before the first step, which would else wait for them.
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
    """Return the folder for weights of `bytes_each` bytes.

    It is `wanted`; else shared memory if that holds the kept versions and one in the making; else
    in the run's folder.
    """
    if wanted is not None:
        return wanted
    if _SHARED.is_dir() and shutil.disk_usage(_SHARED).free > 2 * (KEEP + 1) * bytes_each:
        return _SHARED / f"banyan-{run_id}"
    return run_folder / "weights"


class WeightFolder:
    """Weights by policy. Only its learner writes here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions: list[WeightManifest] = []  # oldest first
        self._spares: list[Path] = []

    def reserve(self, bytes_each: int) -> None:
        """Allocate the pages of the kept versions. Raises TemporaryError if they do not fit."""
        private_files.folder(self.folder)
        with self._reporting_full_disk():
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
        """Write a new version. Raises TemporaryError if it does not fit.

        adapter: PEFT's configuration, where the tensors are an adapter's
        """
        with self._reporting_full_disk():
            name, spare = f"policy-{epoch}-{step}", self._spare()
            manifest = weightfile.write(
                self.folder, name, tensors, epoch, step, dtype, spare, canary, adapter
            )
            return self._add(manifest)

    @contextlib.contextmanager
    def _reporting_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cause = error.strerror or error
            raise TemporaryError(
                f"cannot write weights into {self.folder}: {cause}; is there room?"
            ) from None

    def _spare(self) -> Path | None:
        """Return a file whose pages the next version may use."""
        if self._spares:
            return self._spares.pop()
        return self._versions.pop(0).path if len(self._versions) >= KEEP else None

    def repeat(self, epoch: int, step: int) -> WeightManifest:
        """Publish the newest version under a new number, for a step that changed nothing."""
        last = self._versions[-1]
        path = self.folder / f"policy-{epoch}-{step}.bin"
        path.unlink(missing_ok=True)
        os.link(last.path, path)
        manifest = replace(last, path=path, epoch=epoch, step=step)
        aside = self.folder / f".policy-{epoch}-{step}.json.{os.getpid()}"
        aside.write_text(manifest.to_json())
        os.replace(aside, manifest.manifest_path)
        return self._add(manifest)

    def _add(self, manifest: WeightManifest) -> WeightManifest:
        others = [version for version in self._versions if version.path != manifest.path]
        self._versions = [*others, manifest]
        while len(self._versions) > KEEP:
            self._remove(self._versions.pop(0))
        return manifest

    def _remove(self, manifest: WeightManifest) -> None:
        # The manifest first: there is none without its weights.
        manifest.manifest_path.unlink(missing_ok=True)
        manifest.path.unlink(missing_ok=True)

    def find(self, digest: bytes) -> WeightManifest:
        """Return the newest version with a digest. Raises NotFound once it is gone."""
        for manifest in reversed(self._versions):
            if manifest.digest == digest:
                return manifest
        kept = ", ".join(f"step {version.step}" for version in self._versions) or "none"
        raise NotFound(
            f"weights {digest.hex()[:12]} are not here any more (held: {kept});"
            " fetch the newest policy instead"
        )

    def drop_foreign(self) -> None:
        """Remove files of earlier learners of the run, once a policy of this one is announced."""
        own = {path for m in self._versions for path in (m.path, m.manifest_path)}
        own |= set(self._spares)
        for pattern in ("policy-*.json", "policy-*.bin", ".policy-*"):
            for path in self.folder.glob(pattern):
                if path not in own:
                    path.unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove this learner's files; a newer learner of the run may be writing beside it."""
        while self._versions:
            self._remove(self._versions.pop())
        while self._spares:
            self._spares.pop().unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
