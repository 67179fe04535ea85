"""The removal of folders that a score left behind: of any depth, with any rights, no recursion."""

import os
import secrets
from collections.abc import Iterator

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
