"""The environment of a process that loads torch: how its threads wait, and its pages. Set before torch is imported.

Threads give their core up when there is nothing to do: two processes whose threads spin on two cores are 16 times slower.
But they look again for a few microseconds first. Between two regions of one step there is less, and to sleep and be woken
for each costs a third of the step (PROTOCOL 7, ADR 010).
Tensors lie on huge pages where the kernel gives them: training is a fifteenth faster for it, sampling a seventh (ADR 013).
The C library's one arena too: activations of a short batch are small tensors, and 50,000 small pages of them cost 0.4 s.
It reads its own setting when a process starts, so only a parent that sets it helps there.
"""

from collections.abc import MutableMapping

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
