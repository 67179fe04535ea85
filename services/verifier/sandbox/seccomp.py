"""A seccomp filter: no sockets, no other processes' memory, no new namespaces, and on request no new processes.

Built as classic BPF by hand, so that no library is needed; x86_64 and aarch64 only.
"""

import ctypes
import errno
import struct

from services.verifier.sandbox import kernel

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_CLONE_THREAD = 0x00010000
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000

# ptrace, process_vm_readv/writev, io_uring_setup, unshare, setns, mount, bpf, userfaultfd, perf_event_open,
# open_by_handle_at, pidfd_getfd, add_key, request_key, keyctl
_NEVER = {
    "x86_64": (101, 310, 311, 425, 272, 308, 165, 321, 323, 298, 304, 438, 248, 249, 250),
    "aarch64": (117, 270, 271, 425, 97, 268, 40, 280, 282, 241, 265, 438, 217, 218, 219),
}
_NETWORK = {"x86_64": (41, 42, 49), "aarch64": (198, 203, 200)}  # socket, connect, bind
# fork, vfork, execve, execveat; then kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
_PROCESSES = {
    "x86_64": (57, 58, 59, 322, 62, 200, 234, 129, 297, 424),
    "aarch64": (221, 281, 129, 130, 131, 138, 240, 424),
}
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435


def apply(*, network: bool, processes: bool) -> bool:
    """Installs the filter for this process and its descendants, for good. False on a machine that it does not know."""
    machine = kernel.MACHINE
    if machine not in _ARCHES:
        return False
    denied = [*_NEVER[machine]]
    denied += [] if network else _NETWORK[machine]
    denied += [] if processes else _PROCESSES[machine]
    _install(_program(machine, denied, threads_only=not processes))
    return True


def _program(machine: str, denied: list[int], threads_only: bool) -> bytes:
    # Another architecture's numbers mean other calls, so none of them is let through.
    code = [_step(_LOAD, _ARCH_AT), _step(_JUMP_EQ, _ARCHES[machine], 1, 0), _refuse(errno.EPERM)]
    code += [_step(_LOAD, _NUMBER_AT), _step(_JUMP_GE, _X32, 0, 1), _refuse(errno.EPERM)]
    for number in denied:
        code += [_step(_JUMP_EQ, number, 0, 1), _refuse(errno.EPERM)]
    # clone3 hides its flags in memory, which a filter cannot read: without it the C library falls back to clone.
    code += [_step(_JUMP_EQ, _CLONE3, 0, 1), _refuse(errno.ENOSYS)]
    if threads_only:
        code += [_step(_JUMP_EQ, _CLONE[machine], 0, 3), _step(_LOAD, _FIRST_ARGUMENT_AT)]
        code += [_step(_JUMP_SET, _CLONE_THREAD, 1, 0), _refuse(errno.EPERM)]
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


class _Program(ctypes.Structure):
    _fields_ = (("steps", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _install(program: bytes) -> None:
    filled = _Program(len(program) // 8, program)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.byref(filled))
