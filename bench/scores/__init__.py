"""Scores a second in steady state through the whole event path: broker, store, verifier, store.

Each service is a process of its own, and the queue is full before the verifier starts. A leaf's
text is read from the store, scored by `number`, and its score written there.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.harness.table import Result


def run() -> "Result":
    """Return the table."""
    from bench.scores import measure

    return measure.run()
