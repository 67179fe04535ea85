"""A process that another has forked for this one, which is its parent (ADR 078)."""

import asyncio
import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_UNKNOWN = 255  # the status that asyncio gives a process that somebody else has waited for


class Adopted:
    """A child of this process by its id, as `asyncio.subprocess.Process`.

    Raise OSError, and end the child, if its end cannot be awaited.

    returncode: exit status, negative for a signal; None while it runs.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._descriptor = -1
        try:
            self._descriptor = os.pidfd_open(pid)
            _when_ended(self._descriptor, self._end)
        except OSError:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        try:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            log.warning("process %d ended, but was no child of this one", self.pid)
            self.returncode = _UNKNOWN
        self._ended.set()

    async def wait(self) -> int:
        """Wait for its end; return its exit status."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal. Raise ProcessLookupError once it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        signal.pidfd_send_signal(self._descriptor, number)


def _when_ended(descriptor: int, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_reader(descriptor, call)


_adopting = 0
_one = threading.Lock()


@contextmanager
def adopting() -> Iterator[None]:
    """Become the parent of those descendants of this process whose own parent ends meanwhile.

    Raise OSError if the kernel has no such thing.
    """
    global _adopting
    with _one:
        _adopt(True)
        _adopting += 1
    try:
        yield
    finally:
        with _one:
            _adopting -= 1
            _adopt(_adopting > 0)


def _adopt(wanted: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the parent of a forked process")
