"""Folders of children: made, locked, and removed with all that a score left behind.

Of any depth, with any rights, no recursion.
"""

import contextlib
import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SCORER, JAIL = "banyan-scorer-", "banyan-jail-"
"""First parts of the names of folders that a guard removes."""
MONTY, BATTERY = "banyan-monty-", "banyan-battery-"
"""Of those that the next process removes, if theirs was killed."""
MARK = ".banyan"
"""File of such a folder: without it a folder of that name is somebody else's."""

_NEW_S = 60.0  # in which the maker of a folder has locked it
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def made(prefix: str) -> Iterator[str]:
    """Make a folder that other users may enter. Remove it if the block raises or is cancelled.

    Until a child knows the folder, nobody else removes it.
    """
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        os.chmod(folder, 0o711)
        yield folder
    except BaseException:  # of any kind, a cancelled start too
        remove(folder)
        raise


def claimed(prefix: str) -> str:
    """Return the working folder, which this process may remove with all that comes into it.

    Raise SystemExit unless `made` made it for this process: it has such a name, belongs to this
    user, and is empty. So nothing that was there before is ever removed.
    """
    folder = os.getcwd()
    named = os.path.basename(folder).startswith(prefix)
    if not named or os.stat(folder).st_uid != os.geteuid() or os.listdir(folder):
        raise SystemExit(
            f"this process works in a new folder {prefix}… that it removes when it ends, not in "
            f"{folder!r}; the verifier starts it, and nobody else"
        )
    return folder


def locked(prefix: str, within: str | None = None) -> tuple[str, int]:
    """Make a folder, and return it with a handle whose lock shows that its process lives.

    Those of processes that were killed, which left them behind, are removed first.

    within: folder for it, by default that of temporary files
    """
    remove_dead(prefix, within)
    folder = tempfile.mkdtemp(prefix=prefix, dir=within)
    handle = os.open(folder, _FLAGS)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.close(os.open(MARK, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=handle))
    return folder, handle


def remove_dead(prefix: str, within: str | None = None) -> None:
    """Remove the folders that `locked` made for processes that have ended without doing so."""
    for other in Path(within or tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_dead(str(other))


def _remove_dead(folder: str) -> None:
    try:
        handle = os.open(folder, _FLAGS)
    except OSError:  # it is no folder, has gone, or is another user's
        return
    try:
        found = os.fstat(handle)
        os.stat(MARK, dir_fd=handle, follow_symlinks=False)
        if found.st_uid == os.geteuid() and found.st_mtime < time.time() - _NEW_S:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
    except OSError:  # it is locked, as its process lives, or not marked, as it is none of ours
        pass
    finally:
        os.close(handle)


def remove(folder: str, most: int = 1 << 62) -> bool:
    """Remove a folder and its content, up to `most` entries; return True if nothing is left.

    No other process may write there meanwhile. Folders are moved to the top before they are
    emptied, so that no path is too long and the depth needs no handles.
    """
    try:
        top = os.open(folder, _FLAGS)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not _emptied(top, most):
            return False
    finally:
        os.close(top)
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True


def _emptied(top: int, most: int) -> bool:
    try:
        folders, count = [], 0
        for entry in _entries(top):
            count += 1
            if not _removed(entry, top):
                os.chmod(entry.name, 0o700, dir_fd=top)
                folders.append(entry.name)
        while folders:
            name = folders.pop()
            inner = os.open(name, _FLAGS, dir_fd=top)
            try:
                for entry in _entries(inner):
                    count += 1
                    if count > most:
                        return False
                    if not _removed(entry, inner):
                        folders.append(_moved(entry.name, inner, top))
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
        return True
    except OSError:
        return False


def _entries(handle: int) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(handle) as entries:
        yield from list(entries)


def _removed(entry: "os.DirEntry[str]", folder: int) -> bool:
    """Remove an entry unless it is a folder; return True if it was removed."""
    if entry.is_dir(follow_symlinks=False):
        return False
    os.unlink(entry.name, dir_fd=folder)
    return True


def _moved(name: str, folder: int, top: int) -> str:
    """Move a folder to the top under a new name, which is returned.

    It is opened to its owner first, because the move changes its entry `..`.
    """
    os.chmod(name, 0o700, dir_fd=folder)
    fresh = secrets.token_hex(16)
    os.rename(name, fresh, src_dir_fd=folder, dst_dir_fd=top)
    return fresh
