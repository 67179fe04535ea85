"""A Landlock domain: which folders may be read and written, no TCP, no signals to outside, as far as the kernel knows it."""

import ctypes
import os
import struct
from collections.abc import Iterable

from services.verifier.sandbox import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}


def version() -> int:
    """Version of Landlock in this kernel; 0 without it."""
    try:
        return kernel.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def apply(readable: Iterable[str], writable: Iterable[str], *, network: bool) -> bool:
    """Restricts this process and its descendants, for good. False where the kernel has no Landlock."""
    known = version()
    if known < 1:
        return False
    everything = _ALL_BY_VERSION[min(known, 5)]
    rules = _ruleset(known, everything, network)
    for path in readable:
        _allow(rules, path, everything & _READ)
    for path in writable:
        _allow(rules, path, everything)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.syscall(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint(0))
    os.close(rules)
    return True


def _ruleset(known: int, everything: int, network: bool) -> int:
    tcp = 0 if network else 3  # bind and connect
    scopes = 3  # abstract sockets and signals to processes outside
    attributes = struct.pack("<QQQ", everything, tcp, scopes)[: 8 if known < 4 else 16 if known < 6 else 24]
    return kernel.syscall(_CREATE, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))


def _allow(rules: int, path: str, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        access &= _OF_FILES
    rule = struct.pack("<Qi", access, handle)
    try:
        kernel.syscall(_ADD, ctypes.c_int(rules), ctypes.c_int(1), ctypes.c_char_p(rule), ctypes.c_uint(0))
    finally:
        os.close(handle)
