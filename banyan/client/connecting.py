"""Addresses and secret of a running system, found in its state folder."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from banyan.errors import NotFound
from banyan.runtime import secret as secret_module
from banyan.runtime import state_folder

DEFAULT_STATE = ".banyan"
STATE_VARIABLE = "BANYAN_STATE"
_ADDRESS = re.compile(r"[^/\\\s]+:\d{1,5}")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of a system.

    store: host:port of the treestore
    gateway: host:port of the gateway; empty if only queries are made
    secret: secret of both; empty for none
    """

    store: str
    gateway: str = ""
    secret: str = field(default="", repr=False)


def default_state() -> Path:
    """Return the state folder that commands use when none is named."""
    return Path(os.environ.get(STATE_VARIABLE) or DEFAULT_STATE)


def is_address(where: str | Path) -> bool:
    """Return whether a text is host:port and no path that exists."""
    return bool(_ADDRESS.fullmatch(str(where))) and not Path(where).exists()


def endpoints(where: str | Path | None, gateway: str = "", secret: str = "") -> Endpoints:
    """Return the endpoints of a state folder, or of host:port of a treestore.

    where: None for BANYAN_STATE, or else `.banyan`
    gateway: host:port of the gateway, where `where` is an address
    secret: of an address; else that of the file that BANYAN_SECRET_FILE names, if any

    Raises NotFound if nothing runs on the folder, InvalidInput for a folder without a store.
    """
    where = default_state() if where is None else where
    if is_address(where):
        file = os.environ.get("BANYAN_SECRET_FILE", "")
        known = secret or (secret_module.read(Path(file)) if file else "")
        return Endpoints(str(where), gateway, known)
    folder = Path(where)
    state_folder.check(folder)
    if not state_folder.locked(folder):
        raise NotFound(
            f"nothing runs on {folder}: banyan.open({str(folder)!r}) reads it all the same; a run"
            " is begun by banyan.train, or by `banyan train RECIPE`"
        )
    return of_folder(folder)


def of_folder(folder: Path) -> Endpoints:
    """Return the endpoints of a system that runs on a state folder.

    Raises InvalidInput before its first start.
    """
    return Endpoints(
        store=state_folder.address(folder, "treestore"),
        gateway=state_folder.address(folder, "gateway"),
        secret=secret_module.read(folder / secret_module.FILE),
    )
