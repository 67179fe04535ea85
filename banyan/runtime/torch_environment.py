"""Environment of a process that loads torch: its threads and its memory pages.

It is set before torch is imported. Idle threads yield their core: two processes whose threads spin
on two cores are 16 times slower. But they poll for a few microseconds first: the gap between two
parallel regions of a step is shorter than that, and sleeping and waking for each costs a third of
the step (ADR 010).

Tensors lie on huge pages if the kernel provides them: training is a fifteenth faster for it,
sampling a seventh (ADR 013). So does the C library's one arena: activations of a short batch are
small tensors, and 50,000 small pages of them cost 0.4 s. The library reads its own setting when a
process starts, so only a parent can set it.

A process with a thread for each core binds them: the kernel moves threads whenever a service wakes,
and for some milliseconds two of them then share a core and the rest wait (ADR 032).
"""

import ctypes
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from types import MappingProxyType

_BIND = "OMP_PROC_BIND"
SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "THP_MEM_ALLOC_ENABLE": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1",
}


def settle(environ: MutableMapping[str, str]) -> None:
    """Set the variables that are not set."""
    for name, value in SETTINGS.items():
        environ.setdefault(name, value)


def bind(
    environ: MutableMapping[str, str],
    threads: int | None,
    inherited: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Bind `threads` torch threads to their cores if this process has a core for each.

    Call it before torch is imported. Fewer threads must be free to move: two processes of one
    thread each would both stay on the first core.

    inherited: variables that hold where `environ` has none
    """
    if threads == len(CORES) and _BIND not in inherited:
        environ.setdefault(_BIND, "true")


def roam() -> None:
    """Unbind the calling thread, and those that it starts, after the import of torch bound it."""
    os.sched_setaffinity(0, CORES)


def keep_memory() -> bool:
    """Make glibc keep freed memory; return whether it does.

    Activations come and go each step, and 200,000 page faults cost 0.5 s of it. A C library without
    such a setting is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(_M_MMAP_THRESHOLD, 1 << 30), mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)])


@contextmanager
def roaming() -> Iterator[None]:
    """Let threads that are started within move freely, though the calling thread may be bound."""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, bound)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
CORES = frozenset(os.sched_getaffinity(0))
