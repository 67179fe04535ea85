"""State folder of a system on this machine, as its readers see it: lock, ports, addresses.

services/supervisor/state.py makes and locks it.
"""

import fcntl
import json
import os
from pathlib import Path

from banyan.errors import InvalidInput

HOST = "127.0.0.1"
LOCK, PORTS_FILE, STORE_FILE = "lock", "ports.json", "store.sqlite"


def check(path: Path) -> None:
    """Raise InvalidInput if a folder holds no store, or is closed to this user."""
    try:
        known = (path / STORE_FILE).exists()
    except PermissionError:
        raise InvalidInput(
            f"{path} is closed to this user: state folders are their owners' alone; call this as"
            " the owner, or name another folder with --state"
        ) from None
    if not known and not os.environ.get("BANYAN_DATABASE"):
        raise InvalidInput(
            f"{path} holds no store; run banyan train first, or name the folder with --state"
        )


def locked(path: Path) -> bool:
    """Return True if a system runs on the folder."""
    try:
        with open(path / LOCK) as handle:
            # Shared: another one who asks at the same moment is no system.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False


def read_ports(path: Path) -> dict[str, int]:
    """Return the ports that were chosen last; empty before the first start."""
    try:
        ports = json.loads((path / PORTS_FILE).read_text())
        return {str(service): int(port) for service, port in ports.items()}
    except (OSError, ValueError):
        return {}


def address(path: Path, service: str) -> str:
    """Return host:port of a service of all runs. Raises InvalidInput before the first start."""
    port = read_ports(path).get(service)
    if not port:
        raise InvalidInput(f"{service} was never started on {path}; run banyan train first")
    return f"{HOST}:{port}"
