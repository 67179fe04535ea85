"""Folders and files that only their owner may read, for the data of a run."""

import os
from pathlib import Path

from banyan.errors import InvalidInput

MODE = 0o700
JAIL_PROOFS = "jail_proofs.json"
"""File of a state folder that commands write before any run does."""


def folder(path: Path) -> Path:
    """Create a folder that only its owner may enter; restrict an existing one if it is ours.

    Raise InvalidInput for another user's folder in a place where anybody may create folders.
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
    """Write a file that only its owner may read, atomically."""
    aside = path.with_name(path.name + ".new")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    aside.replace(path)
