"""Makes folders reachable for a user without rights, in mounts of this process alone.

A virtual environment below root's home cannot be entered by `nobody`, so a scorer could not
import lazily. Such a home is covered by an empty folder in which only what is needed is shown.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from services.verifier.sandbox.confinement import kernel


def make_reachable(paths: Iterable[str]) -> bool:
    """Opens the way to the paths. False where that needs rights that this process does not have."""
    closed: dict[Path, list[Path]] = {}
    for path in paths:
        gate = _closed_above(Path(path))
        if gate is not None:
            closed.setdefault(gate, []).append(Path(path))
    try:
        if closed:
            kernel.own_mounts()
        for gate, wanted in closed.items():
            _cover(gate, wanted)
    except OSError:
        return False
    return True


def _closed_above(path: Path) -> Path | None:
    for folder in reversed(path.resolve().parents):
        if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def _cover(gate: Path, wanted: list[Path]) -> None:
    handles = {path.resolve(): os.open(path, os.O_PATH) for path in wanted}
    kernel.mount_empty(str(gate))
    for path, handle in sorted(
        handles.items(), key=lambda shown: len(shown[0].parts)
    ):  # outer folders first
        if path.exists():  # a folder above it was shown already
            continue
        _place(path, is_folder=stat.S_ISDIR(os.fstat(handle).st_mode))
        kernel.mount_bind(f"/proc/self/fd/{handle}", str(path))
    for handle in handles.values():
        os.close(handle)


def _place(path: Path, *, is_folder: bool) -> None:
    """Makes what a path is bound to: a file such as pyvenv.cfg goes on a file, a folder on a folder."""
    if is_folder:
        return path.mkdir(parents=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
