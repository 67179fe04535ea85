"""Access to the treestore of a state folder: a running one, or one for a command alone."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from banyan.cli.invocation import proposed
from banyan.client import Client
from banyan.client.offline import STORING, OfflineStore
from banyan.errors import InvalidInput
from banyan.runtime import secret, state_folder

if TYPE_CHECKING:
    from services.supervisor.state import StateFolder


@contextlib.contextmanager
def reading(state: Path) -> Iterator[Client]:
    """Yield a client for queries; works when nothing runs."""
    folder = checked(state)
    if folder.locked():
        with _connected(folder) as client:
            yield client
        return
    with read_only(state) as (address, known), Client(address, secret=known) as client:
        yield client


@contextlib.contextmanager
def read_only(state: Path) -> Iterator[tuple[str, str]]:
    """Start a store for this command alone, and yield its address and secret.

    The state folder may be one that cannot be written.
    """
    store = OfflineStore(state)
    try:
        yield store.endpoints.store, store.endpoints.secret
    finally:
        store.close()


@contextlib.contextmanager
def storing(state: Path) -> Iterator[Client]:
    """Yield a client that may store too. Where nothing runs, a store alone is started for it, which
    no other process may use meanwhile.
    """
    folder = checked(state)
    if folder.locked():
        with _connected(folder) as client:
            yield client
        return
    folder = type(folder).open(state)
    folder.lock()
    try:
        folder.choose_ports()
        address = folder.address("treestore")
        known = str(folder.path / secret.FILE)
        store = OfflineStore(state, STORING, address=address, secret_file=known)
        try:
            with Client(address, secret=folder.secret) as client:
                yield client
        finally:
            store.close()
    finally:
        folder.unlock()


def checked(state: Path) -> "StateFolder":
    """Return a state folder. Raises InvalidInput if it holds no store."""
    from services.supervisor.state import StateFolder

    state_folder.check(state)
    return StateFolder(state.resolve())


def _connected(folder: "StateFolder") -> Client:
    return Client(folder.address("treestore"), folder.address("gateway"), secret=folder.secret)


def running(state: Path) -> bool:
    """Return whether a system runs on the folder."""
    return state_folder.locked(state)


@contextlib.contextmanager
def commanding(state: Path) -> Iterator[Client]:
    """Yield a client for commands; needs a running system."""
    from services.supervisor.state import StateFolder

    folder = StateFolder(state.resolve())
    if not folder.locked():
        raise InvalidInput(
            f"nothing runs on {state}, and this command needs a running system: start a run with "
            f"{proposed('train RECIPE', state)}, or go on with one that is not over: "
            f"{proposed('train --resume', state)}"
        )
    with _connected(folder) as client:
        yield client
