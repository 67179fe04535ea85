"""Garbage collection is paused while a process imports torch and transformers.

They make a million objects that stay until the end. Collecting while they are made is a quarter of
the time of a start, and visits to them would slow each later collection (ADR 057).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage within the block, and never visit what is there at its end.

    For imports alone: cycles that are garbage at the end of the block are never freed, nor is what
    they hold, such as tensors.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
