"""Notice of a broker that refuses messages for want of space that its disk has again.

JetStream keeps the error of a failed write with the block of the stream, and refuses all further
messages to it until the server is started again (nats-server 2.15). It answers probes all the while
and tells nobody but its log.
"""

import re
import shutil
from pathlib import Path

ROOM = 32 << 20
"""Free bytes with which a server that is started again can go on."""
_MOST_READ = 1 << 20
_REFUSED = re.compile(rb"failed to store a msg.*(no space left on device|quota exceeded)")


class BrokerDisk:
    """The disk of a broker that has just been started.

    log: its log file.
    folder: a folder on the disk of its streams.
    """

    def __init__(self, log: Path, folder: Path) -> None:
        self._log, self._folder = log, folder
        self._read_to = self._size()  # what stands before is of earlier processes

    def problem(self) -> str:
        """Return why the broker must be started again; empty if it need not, or would not help.

        Its clients repeat what it refuses, so it says the same again by the next call.
        """
        if not _REFUSED.search(self._new_lines()):
            return ""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError:
            return ""
        if free < ROOM:
            return ""
        return (
            f"it refuses messages since its disk was full, though {free >> 20} MiB are free again,"
            " and takes them once it is started again"
        )

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _new_lines(self) -> bytes:
        size = self._size()
        if size < self._read_to:  # the file was rotated
            self._read_to = 0
        try:
            with self._log.open("rb") as file:
                file.seek(max(self._read_to, size - _MOST_READ))
                self._read_to = size
                return file.read()
        except OSError:
            return b""
