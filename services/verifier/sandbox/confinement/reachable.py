"""Folders made reachable for a user without rights, in mounts of this process alone.

`nobody` cannot enter a virtual environment below root's home, so a scorer could not import lazily.
Such a home is covered by an empty folder in which only the needed paths are mounted.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from services.verifier.sandbox.confinement import kernel


def make_reachable(paths: Iterable[str]) -> bool:
    """Open the way to the paths; return False without the rights for that."""
    closed: dict[Path, list[Path]] = {}
    for path in paths:
        folder = _closed_above(Path(path))
        if folder is not None:
            closed.setdefault(folder, []).append(Path(path))
    try:
        if closed:
            kernel.own_mounts()
        for folder, needed in closed.items():
            _cover(folder, needed)
    except OSError:
        return False
    return True


def _closed_above(path: Path) -> Path | None:
    """Return the outermost folder above a path that other users cannot enter."""
    for folder in reversed(path.resolve().parents):
        if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def _cover(folder: Path, needed: list[Path]) -> None:
    """Cover a folder with an empty one, and mount the needed paths in it."""
    handles = {path.resolve(): os.open(path, os.O_PATH) for path in needed}
    kernel.mount_empty(str(folder))
    outer_first = sorted(handles.items(), key=lambda item: len(item[0].parts))
    for path, handle in outer_first:
        if path.exists():  # a folder above it is mounted already
            continue
        _make_mount_point(path, is_folder=stat.S_ISDIR(os.fstat(handle).st_mode))
        kernel.mount_bind(f"/proc/self/fd/{handle}", str(path))
    for handle in handles.values():
        os.close(handle)


def _make_mount_point(path: Path, *, is_folder: bool) -> None:
    """Create a folder for a folder, a file for a file such as pyvenv.cfg."""
    if is_folder:
        path.mkdir(parents=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
