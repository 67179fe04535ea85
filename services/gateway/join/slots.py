"""Limits on the concurrent calls, uploads and actions of a joined node.

Calls wait at the store, uploads occupy memory, actions processes of the verifier.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

from banyan.errors import TemporaryError
from banyan.reasons import Reason

CALLS = 512
"""Of a node: more than it has trees. Each tree may wait for its scores."""
UPLOADS = 2
"""Of a node; the store takes four at once from all."""
ACTIONS = 64
"""Of a node that are answered at once; the others are asked again. Runs share the verifier."""
STREAMS = CALLS + 64
"""Of a connection, from any caller: the rest waits on the caller's own machine."""


class Slots:
    """A counter of calls under way, by run and node."""

    def __init__(self, most: int, kind: str) -> None:
        self._most, self._kind = most, kind
        self._used: Counter[tuple[str, str]] = Counter()

    @contextlib.contextmanager
    def slot(self, run_id: str, node_id: str) -> Iterator[None]:
        """Occupy a slot of the node.

        Raise TemporaryError if all are occupied: the node retries, and blocks no other.
        """
        key = run_id, node_id
        if self._used[key] >= self._most:
            raise TemporaryError(
                f"node {node_id} has {self._most} {self._kind} under way, as many as it may;"
                " wait for one to end",
                reason=Reason.TOO_MANY,
            )
        self._used[key] += 1
        try:
            yield
        finally:
            self._used[key] -= 1
            if not self._used[key]:
                del self._used[key]
