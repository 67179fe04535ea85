"""What goes out together, in as few messages as a message's limits allow."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from services.chassis.messaging.bus import MAX_MESSAGE_BYTES

FRAMING_BYTES = 512  # of a message beside its items: run, node and framing
T = TypeVar("T")


def chunked(items: Sequence[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The items in order, in parts of at most `most` of them and of what a message holds; a larger item is alone.

    size: bytes of an item.
    """
    part: list[T] = []
    held = FRAMING_BYTES
    for item in items:
        more = size(item)
        if part and (held + more > MAX_MESSAGE_BYTES or len(part) >= most):
            yield part
            part, held = [], FRAMING_BYTES
        part.append(item)
        held += more
    if part:
        yield part
