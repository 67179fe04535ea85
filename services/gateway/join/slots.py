"""How much a joined node may have under way at once: calls that wait at the store, and uploads, which are held in memory."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from banyan.errors import TemporaryError
from banyan.reasons import Reason

CALLS = 512
"""Of a node: more than it has trees, each of which may wait for its scores."""
UPLOADS = 2
"""Of a node; the store takes four at once from all."""
STREAMS = CALLS + 64
"""Of a connection, whoever it is from: the rest waits in the caller's own machine."""


class Places:
    """Counts what is under way, by run and node."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._taken: Counter[tuple[str, str]] = Counter()

    @contextlib.contextmanager
    def one(self, run_id: str, node_id: str) -> Iterator[None]:
        """One of the node's places. Raises TemporaryError if all are taken: it comes again, and holds up nobody else."""
        key = run_id, node_id
        if self._taken[key] >= self._most:
            message = f"node {node_id} has {self._most} {self._what} under way, as many as it may; wait for one to end"
            raise TemporaryError(message, reason=Reason.TOO_MANY)
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
