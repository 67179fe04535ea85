"""The output of a run on one stream, up to a limit."""

import asyncio
import os
from collections.abc import Callable

_PART = 1 << 16


class Output:
    """The reading end of a stream of a run, and the bytes that came so far.

    most: bytes that are kept.
    on_excess: called once when more come.

    `inner` is the writing end, for the run.
    """

    def __init__(self, most: int, on_excess: Callable[[], None]) -> None:
        self._most, self._on_excess = most, on_excess
        self._data = bytearray()
        self.exceeded = False
        self._end, self.inner = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._end, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end, self._read)

    def close_inner(self) -> None:
        """Close our copy of the writing end."""
        if self.inner >= 0:
            os.close(self.inner)
            self.inner = -1

    def rest(self) -> bytes:
        """Return all bytes that came, once nobody can write any more."""
        while not self.exceeded and self._read():
            pass
        return bytes(self._data[: self._most])

    def _read(self) -> bool:
        """Read what is there; return False at the end, and where nothing is there."""
        try:
            part = os.read(self._end, _PART)
        except BlockingIOError:
            return False
        room = self._most - len(self._data)
        self._data += part[: max(0, room)]
        if len(part) > room and not self.exceeded:
            self.exceeded = True
            self._on_excess()
        if not part or self.exceeded:
            self._loop.remove_reader(self._end)
        return bool(part)

    def close(self) -> None:
        """Close both ends."""
        self.close_inner()
        self._loop.remove_reader(self._end)
        os.close(self._end)
