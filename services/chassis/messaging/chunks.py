"""The size limits of a message, and items cut into as few messages as those limits allow."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

MAX_MESSAGE_BYTES = 512 * 1024  # half of the broker's limit, docs/protocol.md, Grouping and size
HEADER_BYTES = 4096  # allowance for headers, which count against the broker's limit
# The broker closes the connection of a sender that exceeds its own limit of 1 MiB.
BROKER_BYTES = 2 * MAX_MESSAGE_BYTES
FRAMING_BYTES = 512  # of a message beside its items: run, node and framing
T = TypeVar("T")


def chunked(items: Sequence[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield the items in order, in chunks of at most `most` items that each fit a message.

    An item that is too large for a message is alone in its chunk. size: bytes of an item.
    """
    chunk: list[T] = []
    chunk_bytes = FRAMING_BYTES
    for item in items:
        item_bytes = size(item)
        if chunk and (chunk_bytes + item_bytes > MAX_MESSAGE_BYTES or len(chunk) >= most):
            yield chunk
            chunk, chunk_bytes = [], FRAMING_BYTES
        chunk.append(item)
        chunk_bytes += item_bytes
    if chunk:
        yield chunk
