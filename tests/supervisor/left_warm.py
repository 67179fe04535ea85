"""The process that has imported torch, left by one system to the next of the same tests.

Each import costs five seconds of processor time, and each system would make its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from services.supervisor import supervisor
from services.supervisor.warm import WarmProcess

_left: list[tuple[Any, WarmProcess]] = []


class LeftWarm(WarmProcess):
    """Process that a system takes over from the one before, and leaves to the next.

    It is taken over where nothing differs that its imports may have read.
    """

    def __init__(self, log_file: Path) -> None:
        super().__init__(log_file)
        for surroundings, before in list(_left):
            if surroundings == _surroundings():
                _left.clear()
                self._key, self._process = before._key, before._process
                self._requests = before._requests

    async def end(self) -> None:
        self._over = True
        async with self._turn:
            if _left or self._key is None:
                await self._forget()
            else:
                left = WarmProcess(self._log)
                left._key, left._process, left._requests = self._key, self._process, self._requests
                self._process = self._requests = None
                _left.append((_surroundings(), left))


def _surroundings() -> Any:
    """Return what a process inherits, but for the name of the test."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return os.getcwd(), environ


@contextmanager
def left_warm() -> Iterator[None]:
    """Have supervisors that are made within the context take the process over."""
    with mock.patch.object(supervisor, "WarmProcess", LeftWarm):
        yield
