"""Mappings of weight files, used again as long as their file lives.

A policy's pages are used again for a later one (WeightFolder), so the same few files come round: to map 270 MB anew and to
let go of it costs as much as to copy it.
"""

import mmap
import os
import threading
from collections import OrderedDict
from typing import BinaryIO

LIMIT = 4  # the kept versions and one in the making


class Maps:
    """Mappings by file, the newest `limit` of them; none of a file that is gone. May be used by several threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[int, int, int], tuple[int, mmap.mmap]] = OrderedDict()
        self._lock = threading.Lock()

    def shared(self, file: BinaryIO, size: int) -> mmap.mmap:
        """`size` > 0 bytes of a file that is open to write; what is written there is in the file."""
        # Populated by one call instead of a fault for each of 65,000 pages.
        return self._of(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def private(self, file: BinaryIO, size: int) -> mmap.mmap:
        """`size` > 0 bytes of a file to read, as they are in it now. Writable, because torch wants that; never written."""
        return self._of(file, size, flags=mmap.MAP_PRIVATE)

    def _of(self, file: BinaryIO, size: int, flags: int) -> mmap.mmap:
        status = os.fstat(file.fileno())
        key = (status.st_dev, status.st_ino, flags)
        with self._lock:
            self._drop([k for k, (fd, _) in self._held.items() if not os.fstat(fd).st_nlink])
            if key in self._held and len(self._held[key][1]) != size:
                self._drop([key])
            if key not in self._held:
                # Opened anew: a duplicate, which a mapping has too, would share and outlive the lock of who writes the file.
                anew = os.open(
                    f"/proc/self/fd/{file.fileno()}",
                    os.O_RDWR if flags & mmap.MAP_SHARED else os.O_RDONLY,
                )
                self._held[key] = anew, mmap.mmap(anew, size, flags=flags)
            self._held.move_to_end(key)
            self._drop(list(self._held)[: -self._limit])
            return self._held[key][1]

    def _drop(self, keys: list[tuple[int, int, int]]) -> None:
        for key in keys:  # the mapping itself ends with its last tensor
            os.close(self._held.pop(key)[0])
