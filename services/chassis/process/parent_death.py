"""Ties a process to the one that launched it: when the parent dies, the kernel sends SIGTERM (PROTOCOL 7)."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "BANYAN_PARENT"


def tie_to_parent() -> None:
    """Asks the kernel to send SIGTERM when the parent dies, if the launcher named itself in BANYAN_PARENT."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent:
        die_with(int(parent))


def die_with(parent: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Asks the kernel to send a signal when this process's parent, whose id is given, dies."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        os.kill(os.getpid(), by)


def orphaned() -> bool:
    """Whether the launcher that named itself in BANYAN_PARENT is gone."""
    parent = os.environ.get(PARENT_VARIABLE)
    return bool(parent) and os.getppid() != int(parent or 0)
