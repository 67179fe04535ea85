"""The environment of a process that loads torch: how its threads wait, and its pages. Set before torch is imported.

Threads give their core up when there is nothing to do: two processes whose threads spin on two cores are 16 times slower.
But they look again for a few microseconds first. Between two regions of one step there is less, and to sleep and be woken
for each costs a third of the step (PROTOCOL 7, ADR 010).
Tensors lie on huge pages where the kernel gives them: training is a fifteenth faster for it, sampling a seventh (ADR 013).
The C library's one arena too: activations of a short batch are small tensors, and 50,000 small pages of them cost 0.4 s.
It reads its own setting when a process starts, so only a parent that sets it helps there.
Where a process has a thread for each core, each thread keeps to its own: the kernel moves threads about whenever a service
wakes, and for some milliseconds two of them then share a core and the rest wait (ADR 032).
"""

import ctypes
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "THP_MEM_ALLOC_ENABLE": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1",
}


def settle(environ: MutableMapping[str, str]) -> None:
    """Sets what is not set."""
    for name, value in SETTINGS.items():
        environ.setdefault(name, value)


def bind(environ: MutableMapping[str, str], threads: int | None) -> None:
    """Before torch is imported: its `threads` keep to their cores, if there is one for each core that this process has.

    Fewer must be free to move: two processes of one thread each would both keep to the first core.
    """
    if threads == len(CORES):
        environ.setdefault("OMP_PROC_BIND", "true")


def roam() -> None:
    """After torch was imported: the calling thread, which the import bound, and those that it starts move freely again."""
    os.sched_setaffinity(0, CORES)


def keep_memory() -> bool:
    """Tells glibc to keep freed memory: activations come and go each step, and 200,000 page faults cost 0.5 s of it.

    Whether it does; a C library that has no such setting keeps its own ways.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(_M_MMAP_THRESHOLD, 1 << 30), mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)])


@contextmanager
def roaming() -> Iterator[None]:
    """Threads that are started within move freely, though the calling thread may be bound."""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, bound)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
CORES = frozenset(os.sched_getaffinity(0))
