"""An environment of a user's class that does nothing for a while."""

import time
from collections.abc import Mapping
from typing import Any


class Waiting:
    """Answers after some seconds of wall time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begin; there is nothing to remember."""

    def snapshot(self) -> bytes:
        """Return nothing; without it each step would repeat those before it, with their waits."""
        return b""

    def restore(self, state: bytes) -> None:
        """Go on from anywhere."""

    def step(self, action: str) -> tuple[str, float, bool]:
        """Wait."""
        time.sleep(self.seconds)
        return "1", 0.0, False
