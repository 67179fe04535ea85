"""The numbers of refused calls against the kernel's own headers: a wrong one passes silently."""

import re
from pathlib import Path

import pytest

from services.verifier.sandbox.confinement import syscalls

HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",  # the table of all newer architectures
}
FAMILIES = (
    *(
        syscalls.MODES,
        syscalls.NEVER,
        syscalls.OWN,
        syscalls.NETWORK,
        syscalls.STARTS,
        syscalls.SIGNALS,
    ),
    {"clone": syscalls.CLONE, "clone3": syscalls.CLONE3, "fcntl": syscalls.FCNTL},
)


def known(header: Path) -> dict[str, int]:
    """Return the names and numbers of a header."""
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_each_call_has_the_number_that_the_kernel_gives_it(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"this machine has no {header}; the package linux-libc-dev has it")
    numbers, column = known(header), syscalls.MACHINES.index(machine)
    assert len(numbers) > 250
    said = {name: pair[column] for family in FAMILIES for name, pair in family.items()}
    wrong = {name: number for name, number in said.items() if number != numbers.get(name, 0)}
    newer = {
        name
        for name, number in wrong.items()
        if name not in numbers and number > max(numbers.values())
    }
    assert {
        name: (number, numbers.get(name)) for name, number in wrong.items() if name not in newer
    } == {}
