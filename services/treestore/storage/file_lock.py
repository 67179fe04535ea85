"""A lock on a file, held as long as the process lives: the kernel releases it, however the process
ends.

The file says how its last holder ended: it is empty after a holder that released the lock without a
    message.
"""

import fcntl
import os
from pathlib import Path

from banyan.errors import InvalidInput


class FileLock:
    """A lock that is taken when it is made.

    Raises InvalidInput, with the holder's pid, if another process has it.

    left: the message of the last holder: a pid if it was killed, else the text that it released
        with
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a+")  # noqa: SIM115 — open as long as the lock is held
        self._file.seek(0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise InvalidInput(
                f"the store {path.with_suffix('')} is open in process {holder}; stop it,"
                " or use BANYAN_READ_ONLY=1"
            ) from None
        self.left = self._file.read().strip()
        """Text left by the last holder: its pid if it was killed, else the word of its release.
        """
        self._write(str(os.getpid()))

    def release(self, left: str = "") -> None:
        """Release the lock, and leave a message for the next holder; may be repeated."""
        if not self._file.closed:
            self._write(left)
            self._file.close()

    def _write(self, message: str) -> None:
        self._file.truncate(0)
        self._file.write(message)
        self._file.flush()
        os.fsync(self._file.fileno())
