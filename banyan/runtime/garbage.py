"""Garbage collection is paused while a process imports and loads.

torch and transformers make a million objects that stay until the end. Collecting while they are
made is a quarter of the time of a start, and visits to them would slow each later collection.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage within the block, and never visit what it leaves behind.

    For a process that loads once: cycles that exist at the end of the block are never freed.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
