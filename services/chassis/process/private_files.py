"""Folders and files that nobody but their owner may read: what a run keeps is its owner's."""

import os
from pathlib import Path

from banyan.errors import InvalidInput

MODE = 0o700


def folder(path: Path) -> Path:
    """Makes a folder that only its owner enters, or makes one that is there already so, if it is ours.

    Raises InvalidInput for one of another user's in a place where anybody may make folders.
    """
    path.mkdir(mode=MODE, parents=True, exist_ok=True)
    owners = {path.lstat().st_uid, path.stat().st_uid}  # of a link, and of what it leads to
    if owners == {os.geteuid()}:
        if path.stat().st_mode & 0o077:
            path.chmod(MODE)
    elif path.parent.stat().st_mode & 0o1000:
        raise InvalidInput(
            f"{path} belongs to another user (uid {max(owners)}); remove it, or name another folder"
        )
    return path


def write(path: Path, data: bytes) -> None:
    """Writes a file that only its owner may read, in one piece."""
    aside = path.with_name(path.name + ".new")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    aside.replace(path)
