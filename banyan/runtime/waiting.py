"""Signs of life of work that takes a while. Only the standard library, so that it runs before
anything is installed.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

QUIET_S = 10.0  # longest silence where lines are kept, such as in a log
TICK_S = 1.0  # between two pictures on a terminal
_COLUMNS = 80  # of a terminal that does not say it


class Waiting:
    """A message about work under way, repeated with the time that it has taken.

    On a terminal it is one line, written anew every second; else it is a line at once and another
    every ten seconds.

    what: the work, such as "converting the model".
    detail: progress of the work, asked for each time; empty if there is none to tell.
    patient: say nothing before the first repetition, as the work is usually over by then.
    every_s: time between two repetitions.
    """

    def __init__(
        self,
        what: str,
        detail: Callable[[], str] = lambda: "",
        *,
        patient: bool = False,
        stream: TextIO | None = None,
        every_s: float | None = None,
    ) -> None:
        self._what, self._detail, self._patient = what, detail, patient
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._every_s = every_s or (TICK_S if self._terminal else QUIET_S)
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._shown = False
        self._thread = threading.Thread(target=self._repeat, name="waiting", daemon=True)

    def __enter__(self) -> "Waiting":
        self._begun = time.monotonic()
        if not self._patient:
            self._show(0.0)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._terminal and self._shown:
            self._write("\n")

    def _repeat(self) -> None:
        while not self._over.wait(self._every_s):
            self._show(time.monotonic() - self._begun)

    def _show(self, seconds: float) -> None:
        self._shown = True
        took = f"{seconds:.0f} s" if seconds else ""
        progress = ", ".join(filter(None, (self._detail(), took)))
        rest = f": {progress}" if progress else ""
        if not self._terminal:
            return self._write(f"{self._what}{rest}\n")
        # A line that the terminal would fold could not be written over.
        width = self._columns() - 1
        what = self._what[: max(0, width - len(rest))]
        self._write(f"\r{what}{rest}"[: width + 1] + "\x1b[K")

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except (OSError, ValueError):
            return _COLUMNS

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone: the work goes on
            self._over.set()
