"""A seccomp filter that refuses families of `syscalls`: some always, some unless allowed.

Built by hand as classic BPF, so that no library is needed; for x86_64 and aarch64.
"""

import ctypes
import errno
import struct

from services.verifier.sandbox.confinement import kernel, syscalls

# Instructions of classic BPF.
_LOAD = 0x20
_JUMP_EQ = 0x15
_JUMP_GT = 0x25
_JUMP_GE = 0x35
_JUMP_SET = 0x45
_RETURN = 0x06
_AND = 0x54
# Results of the filter.
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Offsets in the description of a call.
_NUMBER_AT, _ARCH_AT = 0, 4
_FIRST_ARGUMENT_AT, _SECOND_ARGUMENT_AT = 16, 24
_CLONE_THREAD = 0x00010000
# All CLONE_NEW* that clone knows: mounts, cgroups, names, IPC, users, processes, network.
_CLONE_NEW = 0x7E020000
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
# F_SETOWN, F_SETSIG, F_SETOWN_EX: they make a file signal any process of the user.
_OWNERS = (8, 10, 15)
# F_SETLEASE, F_NOTIFY, F_SET_RW_HINT, F_SET_FILE_RW_HINT: marks that stay with a file.
_MARKS = (1024, 1026, 1036, 1038)
# Allowed requests to files: TCGETS, TCGETS2, FIONREAD, FIONBIO, TIOCGWINSZ, FIONCLEX, FIOCLEX,
# FICLONERANGE, FICLONE. Others change flags, projects and versions of files that are open for
# reading only, or name the process that a file signals.
_ALLOWED_REQUESTS = (
    *(0x5401, 0x802C542A, 0x541B, 0x5421, 0x5413),
    *(0x5450, 0x5451, 0x4020940D, 0x40049409),
)
# First and last request of sockets, allowed with the network. Below them are FIOSETOWN and
# SIOCSPGRP, which name the process that a socket signals.
_SOCKET_REQUESTS = (0x890B, 0x89FF)
# Connected pairs of stream or sequential-packet sockets. A datagram socket of a pair may send to
# any socket that has a name.
_UNIX = 1
_STREAM, _SEQPACKET = 1, 5


def apply(*, network: bool, processes: bool, signals: bool, modes: bool) -> bool:
    """Install the filter irrevocably for this process and its descendants.

    Return False on an unknown machine.

    network: allow sockets.
    processes: allow new processes.
    signals: allow signals, if something else keeps them within the score.
    modes: allow changes of modes and times of files, if the user owns no other files.
    """
    if kernel.MACHINE not in _ARCHES:
        return False
    signals = signals and processes
    install(
        program(kernel.MACHINE, network=network, processes=processes, signals=signals, modes=modes)
    )
    return True


def program(machine: str, *, network: bool, processes: bool, signals: bool, modes: bool) -> bytes:
    """Return the filter's instructions."""
    denied = [*syscalls.NEVER.values()]
    denied += [] if modes else syscalls.MODES.values()
    denied += [] if network else syscalls.NETWORK.values()
    denied += [] if processes else syscalls.STARTS.values()
    denied += [] if signals else syscalls.SIGNALS.values()
    # The numbers of another architecture mean other calls, so all of them are refused.
    code = [_step(_LOAD, _ARCH_AT), _step(_JUMP_EQ, _ARCHES[machine], 1, 0), _refuse(errno.EPERM)]
    code += [_step(_LOAD, _NUMBER_AT), _step(_JUMP_GE, _X32, 0, 1), _refuse(errno.EPERM)]
    code += [_step(_JUMP_GT, syscalls.LAST_KNOWN, 0, 1), _refuse(errno.ENOSYS)]
    for number in syscalls.numbers(denied, machine):
        code += [_step(_JUMP_EQ, number, 0, 1), _refuse(errno.EPERM)]
    # Without clone3 the C library falls back to clone, whose flags are visible.
    code += [_step(_JUMP_EQ, _of(syscalls.CLONE3, machine), 0, 1), _refuse(errno.ENOSYS)]
    code += _clone(_of(syscalls.CLONE, machine), threads_only=not processes)
    code += _fcntl(_of(syscalls.FCNTL, machine))
    code += _ioctl(_of(syscalls.IOCTL, machine), network=network)
    code += [] if network else _pairs(_of(syscalls.SOCKETPAIR, machine))
    for number in syscalls.numbers(syscalls.OWN.values(), machine):
        code += [_step(_JUMP_EQ, number, 0, 4), _step(_LOAD, _FIRST_ARGUMENT_AT)]
        code += [_step(_JUMP_EQ, 0, 1, 0), _refuse(errno.EPERM), _step(_RETURN, _ALLOW)]
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _clone(number: int, *, threads_only: bool) -> list[bytes]:
    inner = [
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_JUMP_SET, _CLONE_NEW, 0, 1),
        _refuse(errno.EPERM),
    ]
    if threads_only:
        inner += [_step(_JUMP_SET, _CLONE_THREAD, 1, 0), _refuse(errno.EPERM)]
    inner.append(_step(_RETURN, _ALLOW))
    return [_step(_JUMP_EQ, number, 0, len(inner)), *inner]


def _fcntl(number: int) -> list[bytes]:
    inner = [_step(_LOAD, _SECOND_ARGUMENT_AT)]
    for command in (*_OWNERS, *_MARKS):
        inner += [_step(_JUMP_EQ, command, 0, 1), _refuse(errno.EPERM)]
    inner.append(_step(_RETURN, _ALLOW))
    return [_step(_JUMP_EQ, number, 0, len(inner)), *inner]


def _ioctl(number: int, *, network: bool) -> list[bytes]:
    inner = [_step(_LOAD, _SECOND_ARGUMENT_AT)]
    for request in _ALLOWED_REQUESTS:
        inner += [_step(_JUMP_EQ, request, 0, 1), _step(_RETURN, _ALLOW)]
    if network:
        first, last = _SOCKET_REQUESTS
        inner += [_step(_JUMP_GE, first, 0, 2), _step(_JUMP_GT, last, 1, 0), _step(_RETURN, _ALLOW)]
    inner.append(_refuse(errno.EPERM))
    return [_step(_JUMP_EQ, number, 0, len(inner)), *inner]


def _pairs(number: int) -> list[bytes]:
    inner = [_step(_LOAD, _FIRST_ARGUMENT_AT), _step(_JUMP_EQ, _UNIX, 1, 0), _refuse(errno.EPERM)]
    inner += [_step(_LOAD, _SECOND_ARGUMENT_AT), _step(_AND, 0xF)]
    for kind in (_STREAM, _SEQPACKET):
        inner += [_step(_JUMP_EQ, kind, 0, 1), _step(_RETURN, _ALLOW)]
    inner.append(_refuse(errno.EPERM))
    return [_step(_JUMP_EQ, number, 0, len(inner)), *inner]


def _of(call: syscalls.Numbers, machine: str) -> int:
    return call[syscalls.MACHINES.index(machine)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


class _Program(ctypes.Structure):
    _fields_ = (("steps", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Install a filter irrevocably for this process and its descendants. Raises OSError."""
    filled = _Program(len(program) // 8, program)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.byref(filled))
