"""Process and IPC namespaces, and users, that a scorer's children have for themselves.

In a process namespace nothing outlives its first process, nothing outside can be seen or
signalled, and all of it ends with one call. Root makes one as it is, others inside a user
namespace, where the kernel lets them. Where it does not, the guard and the warm child kill what a
score started one by one, and scores that may start processes take turns: the kernel's limit of
processes counts all that a user has.
"""

import os
import secrets
from pathlib import Path

from services.verifier.sandbox.confinement import kernel

NOBODY = 65534
_ROOMS = (
    (0x70000000, 1 << 28),
    (60_000, 5_000),
)  # unused by distributions; the second in containers that map 65,536


def enter() -> bool:
    """Put what this process forks from now on into a process namespace of its own. False where the kernel refuses that."""
    try:
        if os.geteuid() == 0:
            kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
        elif _tried():
            _own_users()
        else:
            return False
    except OSError:
        return False
    return True


def possible() -> bool:
    """Whether `enter` succeeds, tried in a process that ends at once."""
    process = os.fork()
    if process == 0:
        entered = False
        try:
            entered = enter()
        finally:
            os._exit(0 if entered else 1)
    return os.waitpid(process, 0)[1] == 0


def _own_users() -> None:
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _tried() -> bool:
    """Whether all steps succeed, tried aside: half of them would leave this process without a user."""
    process = os.fork()
    if process == 0:
        try:
            _own_users()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(process, 0)[1] == 0


def own_user() -> int:
    """A user id that no other process has, so that its limits and files are those of one child's scores alone."""
    for first, size in _ROOMS:
        if _mapped(first, first + size):
            return first + secrets.randbelow(size)
    return NOBODY


def _mapped(first: int, end: int) -> bool:
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= first and end <= inside + count:
            return True
    return False
