"""Store of runs and trees: a running system's, or one started for this reader alone."""

import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from banyan.client import Client
from banyan.client import connecting as connecting_module
from banyan.client.offline import OfflineStore
from banyan.errors import InvalidInput, NotFound
from banyan.runtime import state_folder
from banyan.stored.lineage import Lineage
from banyan.stored.plain import id_bytes
from banyan.stored.run import Run
from banyan.stored.tree import Tree

Connected = tuple[Client, Callable[[], None]]
"""A client, and what ends it."""


class Store:
    """Reader of runs and trees. It connects at the first question, and ends with `close`.

    name: where it reads, for messages
    connect: makes the client and what ends it
    """

    def __init__(self, name: str, connect: Callable[[], Connected]) -> None:
        self._name, self._connect = name, connect
        self._client: Client | None = None
        self._end: Callable[[], object] = lambda: None
        self._closed = False

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self._name}{', closed' if self._closed else ''}>"

    @property
    def client(self) -> Client:
        """Client of the store, for calls that have no typed form. Raises InvalidInput if closed."""
        if self._closed:
            raise InvalidInput(
                f"the store of {self._name} is closed; read within the `with` block, or open it"
                " again"
            )
        if self._client is None:
            self._client, end = self._connect()
            self._end = weakref.finalize(self, end)  # at the end of the process, too
        return self._client

    def close(self) -> None:
        """End the connection, and the store if it was started for this reader. May be repeated."""
        self._closed = True
        self._end()

    def runs(self) -> tuple[Run, ...]:
        """Return all runs, newest first."""
        return tuple(Run.of(message, self) for message in self.client.runs())

    def run(self, run_id: str = "") -> Run:
        """Return a run by id or by a unique beginning of it; the newest if none is named.

        Raises NotFound.
        """
        if run_id:
            return Run.of(self.client.run(run_id), self)
        newest = next(iter(self.client.runs()), None)
        if newest is None:
            raise NotFound(f"there is no run in {self._name}; banyan.train begins one")
        return Run.of(newest, self)

    def tree(self, tree_id: str) -> Tree:
        """Return a tree by its id in hex, or by a unique beginning of at least 8 digits.

        Raises NotFound.
        """
        message = self.client.tree(id_bytes(tree_id, "tree"))
        _check_digits(tree_id, message.spec.tree_id, "tree")
        return Tree(message, self)

    def lineage(self, segment: str) -> Lineage:
        """Return the lineage of a segment by its id in hex, or by a unique beginning of it.

        Raises NotFound.
        """
        prefix = id_bytes(segment, "segment")
        answer = self.client.ancestry(prefix)
        whole = answer.segments[-1].id
        _check_digits(segment, whole, "segment")
        return Lineage.of(answer, self.client.consumers(whole))


def open_store(where: str | Path | None = None, *, gateway: str = "", secret: str = "") -> Store:
    """Open the runs of a state folder, or of a running system.

    If nothing runs on the folder, a store is started that only reads; it ends with `close`, with
    the `with` block, or with this process. Else the running one is asked.

    where: state folder, or host:port of a treestore; None for BANYAN_STATE or `.banyan`
    gateway, secret: of an address

    Raises InvalidInput for a folder without a store, or one of another version.
    """
    store = lazily_opened(where, gateway=gateway, secret=secret)
    _ = store.client
    return store


def lazily_opened(where: str | Path | None = None, *, gateway: str = "", secret: str = "") -> Store:
    """Return what `open_store` does, but connect at the first question alone."""
    found = connecting_module.default_state() if where is None else where
    if connecting_module.is_address(found):

        def through() -> Connected:
            client = Client.connect(found, gateway=gateway, secret=secret)
            return client, client.close

        return Store(str(found), through)
    return Store(str(found), lambda: _of_folder(Path(found)))


def _of_folder(folder: Path) -> Connected:
    state_folder.check(folder)
    if state_folder.locked(folder):
        client = Client.connect(folder)
        return client, client.close
    store = OfflineStore(folder)
    client = Client(store.endpoints.store, secret=store.endpoints.secret)

    def end() -> None:
        client.close()
        store.close()

    return client, end


def _check_digits(text: str, whole: bytes, what: str) -> None:
    """Raise NotFound if an odd last digit, which a search by bytes ignores, does not match."""
    if not whole.hex().startswith(text.lower()):
        raise NotFound(f"there is no {what} {text}")
