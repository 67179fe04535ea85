"""The root folder of runs in namespaces: the interpreter read-only, and one empty folder."""

import os
from collections.abc import Sequence
from pathlib import Path

from services.verifier.sandbox.confinement import kernel

WORK = "work"
_NULL = "/dev/null"
# Covered in the mounts of the zygote alone.
_PLACES = ("/mnt", "/media", "/srv", "/opt", "/home")


def place(readable: Sequence[str]) -> str:
    """Return a folder that every user can reach, and that is not needed. Raises OSError."""
    for place in _PLACES:
        covers = any(f"{path}/".startswith(f"{place}/") for path in readable)
        if os.path.isdir(place) and not covers:
            return place
    raise OSError(f"none of {', '.join(_PLACES)} is there to mount a root folder on")


def make(root: str, readable: Sequence[str]) -> None:
    """Mount the folder at `root`, in mounts of this process alone. Raises OSError."""
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for path in sorted({*readable, _NULL}):
        _show(root, Path(path))
    (Path(root) / WORK).mkdir()
    kernel.mount(
        None, root, None, kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    )


def enter(root: str, user: int, disk_mb: int, files: int) -> None:
    """Make `root` the root folder of this process, and its work folder the current one.

    The mounts must be this process's own. Raises OSError.
    """
    # Mounts of a more privileged namespace are locked; a copy of them can become the root.
    kernel.mount(root, root, None, kernel.MS_BIND | kernel.MS_REC)
    os.chdir(root)
    kernel.mount(
        "tmpfs",
        WORK,
        "tmpfs",
        kernel.MS_NOSUID | kernel.MS_NODEV,
        f"mode=700,uid={user},gid={user},size={max(disk_mb, 1)}m,nr_inodes={files + 1}",
    )
    kernel.pivot_root(".", ".")
    kernel.unmount(".")
    os.chdir(f"/{WORK}")


def _show(root: str, path: Path) -> None:
    """Mount a path read-only at the same place below the root."""
    target = Path(root) / path.relative_to("/")
    if target.exists() or target.is_symlink():
        return  # a folder above it is mounted already
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.symlink_to(os.readlink(path))
        return
    if path.is_dir():
        target.mkdir()
    else:
        target.touch()
    kernel.mount(str(path), str(target), None, kernel.MS_BIND | kernel.MS_REC)
    device = 0 if str(path) == _NULL else kernel.MS_NODEV
    flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | device
    kernel.mount(None, str(target), None, flags | _locked_flags(target))


def _locked_flags(path: Path) -> int:
    """Return the flags of a mount that a user namespace may not clear."""
    flags = os.statvfs(path).f_flag
    return sum(
        mount
        for stat, mount in (
            (os.ST_NODEV, kernel.MS_NODEV),
            (os.ST_NOEXEC, kernel.MS_NOEXEC),
            (os.ST_NOATIME, kernel.MS_NOATIME),
            (os.ST_RELATIME, kernel.MS_RELATIME),
        )
        if flags & stat
    )
