"""Linux calls without a Python function: process control, mounts, system calls by number."""

import ctypes
import os
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
MACHINE = platform.machine()

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_BIND, MS_REC, MS_RELATIME = 1024, 4096, 16384, 1 << 21
_MS_PRIVATE = 1 << 18
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_NONE = ctypes.c_ulong(0)


def prctl(option: int, first: int, second: object = _NONE) -> None:
    """Call prctl(2). Raise OSError."""
    _check(
        _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(first), second, _NONE, _NONE),
        f"prctl {option}",
    )


def syscall(number: int, *arguments: object) -> int:
    """Make a system call by number and return its result. Raise OSError."""
    return _check(int(_libc.syscall(ctypes.c_long(number), *arguments)), f"system call {number}")


def unshare(flags: int) -> None:
    """Call unshare(2). Raise OSError."""
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def drop_capabilities() -> None:
    """Drop all capabilities of this process. Raise OSError."""
    version_3 = struct.pack("<Ii", 0x20080522, 0)
    _check(_libc.capset(ctypes.c_char_p(version_3), ctypes.c_char_p(bytes(24))), "capset")


def own_mounts() -> None:
    """Give this process mounts of its own, invisible to others. Raise OSError without rights."""
    unshare(CLONE_NEWNS)
    _check(_libc.mount(b"none", b"/", None, MS_REC | _MS_PRIVATE, None), "mount /")


def mount_empty(folder: str) -> None:
    """Mount an empty folder in memory over a folder."""
    _check(
        _libc.mount(b"none", folder.encode(), b"tmpfs", 0, b"mode=755,size=1m"), f"mount {folder}"
    )


def mount_bind(source: str, target: str) -> None:
    """Mount a file or folder at a second place."""
    _check(
        _libc.mount(source.encode(), target.encode(), None, MS_BIND | MS_REC, None),
        f"bind {target}",
    )


def mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    """Call mount(2). Raise OSError."""
    names = [None if name is None else name.encode() for name in (source, target, kind, options)]
    _check(
        _libc.mount(names[0], names[1], names[2], ctypes.c_ulong(flags), names[3]),
        f"mount {target}",
    )


def unmount(target: str) -> None:
    """Detach a mount, at once for new users of it. Raise OSError."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"unmount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root folder, and mount the old one at `old`. Raise OSError."""
    syscall(_PIVOT_ROOT[MACHINE], ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode()))


def join_namespace(handle: int, kind: int) -> None:
    """Call setns(2). Raise OSError."""
    _check(_libc.setns(ctypes.c_int(handle), ctypes.c_int(kind)), f"setns {kind:#x}")


def sethostname(name: str) -> None:
    """Set the name of the machine. Raise OSError."""
    _check(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
