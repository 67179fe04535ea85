"""Landlock domains: readable files, one writable folder, no TCP, no signals to the outside.

Each right depends on the kernel's version of Landlock. Two domains are stacked, and either can
refuse. The domain of reading is prepared once for all scores of a child, however many files it
names; the domain of writing is made for each score and names its folder.
"""

import ctypes
import os
import struct
from collections.abc import Iterable

from services.verifier.sandbox.confinement import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ALL_BY_VERSION = {
    1: (1 << 13) - 1,
    2: (1 << 14) - 1,
    3: (1 << 15) - 1,
    4: (1 << 15) - 1,
    5: (1 << 16) - 1,
}
SIGNALS_SINCE = 6  # version from which a domain keeps signals in


def version() -> int:
    """Return the version of Landlock in this kernel; 0 without it."""
    try:
        return kernel.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def reading(readable: Iterable[str], listable: Iterable[str], workspace: str) -> int | None:
    """Prepare the domain of reading and return its handle for `restrict`; None without Landlock.

    readable: paths that may be read with all below them.
    listable: folders below which names may be listed.
    workspace: folder of which files may be read and moved.

    Raise OSError if a rule fails.
    """
    known = version()
    if known < 1:
        return None
    refer = _REFER if known >= 2 else 0  # a domain that does not handle this right refuses it
    rules = _ruleset(struct.pack("<Q", _READ | refer))
    for path in readable:
        _allow(rules, path, _READ)
    for path in listable:
        _allow(rules, path, _READ_DIR)
    _allow(rules, workspace, _READ | refer)
    return rules


def restrict(rules: int) -> None:
    """Put this process and its descendants under a prepared domain irrevocably. Raise OSError."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.syscall(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint(0))


def restrict_writing(writable: Iterable[str], *, network: bool) -> None:
    """Let this process and its descendants write below these paths alone, irrevocably.

    Raise OSError if that fails, also without Landlock.
    """
    known = version()
    changes = _ALL_BY_VERSION[max(1, min(known, 5))] & ~_READ
    tcp = 0 if network else 3  # bind and connect
    scopes = 3  # abstract sockets and signals to processes outside
    attributes = struct.pack("<QQQ", changes, tcp, scopes)
    if known < 4:
        attributes = attributes[:8]
    elif known < 6:
        attributes = attributes[:16]
    rules = _ruleset(attributes)
    try:
        for path in writable:
            _allow(rules, path, changes)
        restrict(rules)
    finally:
        os.close(rules)


def _ruleset(attributes: bytes) -> int:
    return kernel.syscall(
        _CREATE, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)
    )


def _allow(rules: int, path: str, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        access &= _OF_FILES
    rule = struct.pack("<Qi", access, handle)
    try:
        kernel.syscall(
            _ADD, ctypes.c_int(rules), ctypes.c_int(1), ctypes.c_char_p(rule), ctypes.c_uint(0)
        )
    finally:
        os.close(handle)
