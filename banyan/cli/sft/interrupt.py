"""Ctrl-C between two steps.

Within a step it may arrive in a callback that PyTorch makes from C, where an exception is lost.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def between_steps(on_step: Callable[[int, float], None]) -> Iterator[Callable[[int, float], None]]:
    """Give a function for the end of each step, which raises KeyboardInterrupt after a Ctrl-C.

    A second Ctrl-C interrupts at once.

    on_step: called at the end of each step that nothing interrupted
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    def checked(step: int, loss: float) -> None:
        if asked:
            raise KeyboardInterrupt
        on_step(step, loss)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield checked
    finally:
        signal.signal(signal.SIGINT, before)
