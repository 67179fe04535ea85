"""Callback of clients whose peer, the store or the broker, does not answer."""

from collections.abc import Callable

Away = Callable[[], None]
"""Called after each failed try, so that whoever waits for the client is not taken for hung."""


def ignore() -> None:
    """Do nothing."""
