"""Instructions for joining nodes.

The token is in a file that only its owner can read, never in a shell's history.
"""

import os
import shlex
from pathlib import Path

from banyan.cli.invocation import me

_MOST = 1000  # token files of a run


def joining(state: Path, run_id: str, address: str, token: str) -> str:
    """Write the token to its file and return the instructions."""
    file = keep(state, run_id, token).resolve()
    return (
        f"other nodes join with: {me()} join {address} --token-file {shlex.quote(str(file))}\n"
        "on another host: copy that file there, or leave the option out and enter the token when "
        "asked"
    )


def keep(state: Path, run_id: str, token: str) -> Path:
    """Write the token to a file of mode 0600 and return its path."""
    folder = state / "tokens"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / run_id
    for number in range(2, _MOST):  # earlier instructions name files of their own
        if not file.exists():
            break
        file = folder / f"{run_id}-{number}"
    partial = folder / f".{run_id}.{os.getpid()}"
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(token + "\n")
    partial.rename(file)
    return file
