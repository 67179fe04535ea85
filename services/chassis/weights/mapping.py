"""A cache of mappings of weight files.

The pages of a policy are reused for a later one (WeightFolder), so the same few files come round.
Mapping and unmapping 270 MB costs as much as copying it.
"""

import mmap
import os
import threading
from collections import OrderedDict
from typing import BinaryIO

Key = tuple[int, int, int]  # device, inode, flags
LIMIT = 4  # the kept versions, and the one being written


class Maps:
    """Mappings by file: the newest `limit`, none of a deleted file. Safe for several threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._mappings: OrderedDict[Key, tuple[int, mmap.mmap]] = OrderedDict()
        self._lock = threading.Lock()

    def shared(self, file: BinaryIO, size: int) -> mmap.mmap:
        """Return `size` > 0 bytes of a file that is open to write; writes go to the file."""
        # MAP_POPULATE: one call instead of a fault for each of 65,000 pages.
        return self._map(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def private(self, file: BinaryIO, size: int) -> mmap.mmap:
        """Return `size` > 0 bytes of a file to read.

        The mapping is writable because torch requires that; it is never written.
        """
        return self._map(file, size, flags=mmap.MAP_PRIVATE)

    def _map(self, file: BinaryIO, size: int, flags: int) -> mmap.mmap:
        status = os.fstat(file.fileno())
        key = (status.st_dev, status.st_ino, flags)
        with self._lock:
            self._drop([key for key, (fd, _) in self._mappings.items() if _is_deleted(fd)])
            if key in self._mappings and len(self._mappings[key][1]) != size:
                self._drop([key])
            if key not in self._mappings:
                # A duplicate of the descriptor, as a mapping makes one too, would share the
                # writer's lock and outlive it. So the file is opened again.
                mode = os.O_RDWR if flags & mmap.MAP_SHARED else os.O_RDONLY
                fd = os.open(f"/proc/self/fd/{file.fileno()}", mode)
                self._mappings[key] = fd, mmap.mmap(fd, size, flags=flags)
            self._mappings.move_to_end(key)
            self._drop(list(self._mappings)[: -self._limit])
            return self._mappings[key][1]

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:  # the mapping itself ends with its last tensor
            os.close(self._mappings.pop(key)[0])


def _is_deleted(fd: int) -> bool:
    return not os.fstat(fd).st_nlink
