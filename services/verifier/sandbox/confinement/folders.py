"""Removes folders that a score left behind: of any depth, with any rights, without recursion."""

import os
import secrets
from collections.abc import Iterator

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(folder: str, most: int = 1 << 62) -> bool:
    """Remove a folder and what is in it, up to `most` entries. Whether nothing is left. Nobody else may write there then.

    Folders are moved to the top before they are emptied, so that no path grows too long, and no
    handle is kept by depth.
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
        waiting, seen = [], 0
        for entry in _entries(top):
            seen += 1
            if not _dropped(entry, top):
                os.chmod(entry.name, 0o700, dir_fd=top)
                waiting.append(entry.name)
        while waiting:
            name = waiting.pop()
            inner = os.open(name, _FLAGS, dir_fd=top)
            try:
                for entry in _entries(inner):
                    seen += 1
                    if seen > most:
                        return False
                    if not _dropped(entry, inner):
                        waiting.append(_moved(entry.name, inner, top))
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
        return True
    except OSError:
        return False


def _entries(handle: int) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(handle) as found:
        yield from list(found)


def _dropped(entry: "os.DirEntry[str]", folder: int) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return False
    os.unlink(entry.name, dir_fd=folder)
    return True


def _moved(name: str, folder: int, top: int) -> str:
    """Move a folder to the top under a name of its own, and open it to its owner: moving it changes its entry `..`."""
    os.chmod(name, 0o700, dir_fd=folder)
    fresh = f"{secrets.token_hex(16)}"
    os.rename(name, fresh, src_dir_fd=folder, dst_dir_fd=top)
    return fresh
