"""A lock on a file, held as long as the process lives: the kernel lets go of it, whatever way the process ends."""

import fcntl
import os
from pathlib import Path

from banyan.errors import InvalidInput


class FileLock:
    """Taken when made. Raises InvalidInput, with the holder's pid, if another process has it."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a+")  # noqa: SIM115 — open as long as the lock is held
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise InvalidInput(
                f"the store {path.with_suffix('')} is open in process {holder}; stop it, or use BANYAN_READ_ONLY=1"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Lets go of it."""
        self._file.close()
