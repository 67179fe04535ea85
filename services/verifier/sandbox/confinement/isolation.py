"""Process and IPC namespaces, and users, of a scorer's children alone.

In a process namespace nothing outlives its first process, nothing outside can be seen or
signalled, and all of it ends with one call. Root creates one directly, other users inside a user
namespace if the kernel allows it. Otherwise the guard and the warm child kill the processes of a
score one by one, and scores that may start processes take turns, because the kernel's limit counts
all processes of a user.
"""

import os
import secrets
from pathlib import Path

from services.verifier.sandbox.confinement import kernel

NOBODY = 65534
# Ranges of user ids (first, size) that distributions do not use; the second is for containers that
# map 65,536 ids.
_RANGES = ((0x70000000, 1 << 28), (60_000, 5_000))


def enter() -> bool:
    """Put later forks of this process into a process namespace of their own.

    Return False if the kernel refuses that.
    """
    try:
        if os.geteuid() == 0:
            kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
        elif _can_own_users():
            _own_users()
        else:
            return False
    except OSError:
        return False
    return True


def possible() -> bool:
    """Return True if `enter` succeeds, tried in a process that ends at once."""
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


def _can_own_users() -> bool:
    """Return True if `_own_users` succeeds, tried in another process.

    Half of its steps would leave this process without a user.
    """
    process = os.fork()
    if process == 0:
        try:
            _own_users()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(process, 0)[1] == 0


def own_user() -> int:
    """Return a user id that no other process has; NOBODY if the namespace maps none.

    Its limits and files are then those of one child's scores alone.
    """
    for first, size in _RANGES:
        if _mapped(first, first + size):
            return first + secrets.randbelow(size)
    return NOBODY


def _mapped(first: int, end: int) -> bool:
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= first and end <= inside + count:
            return True
    return False
