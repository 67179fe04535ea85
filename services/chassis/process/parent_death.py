"""Tie a process to its launcher: the kernel sends SIGTERM when the parent dies.

See docs/protocol.md, One parent.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "BANYAN_PARENT"


def tie_to_parent() -> None:
    """Have the kernel send SIGTERM when the parent dies, if BANYAN_PARENT names the launcher."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent:
        die_with(int(parent))


def die_with(parent: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send a signal when this process's parent, given by its id, dies."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:  # it died before the request
        os.kill(os.getpid(), by)


def orphaned() -> bool:
    """Return True if the launcher named in BANYAN_PARENT is gone."""
    parent = os.environ.get(PARENT_VARIABLE)
    return bool(parent) and os.getppid() != int(parent or 0)
