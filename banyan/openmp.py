"""How the threads of a process that loads torch wait for each other (PROTOCOL 7, ADR 010).

They give their core up when there is nothing to do: two processes whose threads spin on two cores are 16 times slower.
But they look again for a few microseconds first. Between two regions of one step there is less, and to sleep and be woken
for each costs a third of the step. Set before torch is imported.
"""

from collections.abc import MutableMapping

QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}


def settle(environ: MutableMapping[str, str]) -> None:
    """Sets what is not set."""
    for name, value in QUIET.items():
        environ.setdefault(name, value)
