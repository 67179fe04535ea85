"""Attempts to reach something outside, run as a program in the jail. Each yields what it got.

This file is the program, with a call of `main` behind it. It imports nothing of ours.
"""

import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

Trap = dict[str, Any]
_ARM = platform.machine() == "aarch64"
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_libc = ctypes.CDLL(None, use_errno=True)


def main(name: str) -> None:
    """Run one attempt and print what it got, a line each."""
    trap = json.load(sys.stdin)
    for hole in ATTEMPTS[name](trap):
        print(hole)


def _got(what: str, function: Callable[..., Any], *arguments: Any) -> Iterator[str]:
    """Yield a hole if a call succeeds."""
    try:
        result = function(*arguments)
    except (OSError, RuntimeError, ValueError, MemoryError, ImportError):
        return
    yield f"{what}: {result!r:.80}"


def _call(x86: int, arm: int, *arguments: Any) -> int:
    """Make a system call. Raises OSError."""
    result = int(_libc.syscall(ctypes.c_long(arm if _ARM else x86), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def _prctl(option: int, value: int) -> int:
    if _libc.prctl(option, value, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return value


def _buffer() -> Any:
    return ctypes.create_string_buffer(64)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(20)


def _append(path: str) -> int:
    with open(path, "ab") as file:
        return file.write(b"x")


def _make(path: str) -> int:
    with open(path, "xb") as file:
        return file.fileno()


def reads(trap: Trap) -> Iterator[str]:
    """Read a secret, a state folder, rows with answers, files of the machine."""
    for path in trap["files"]:
        yield from _got(f"read {path}", _read, path)
    for path in trap["folders"]:
        yield from _got(f"listed {path}", os.listdir, path)


def writes(trap: Trap) -> Iterator[str]:
    """Write, create, remove, rename and link outside of the run's folder."""
    for path in trap["writable"]:
        yield from _got(f"wrote {path}", _append, path)
        yield from _got(f"made a file beside {path}", _make, path + ".made")
        yield from _got(f"removed {path}", os.unlink, path)
        yield from _got(f"moved {path}", os.rename, path, path + ".moved")
        yield from _got(f"linked {path}", os.link, path, "link")


def attributes(trap: Trap) -> Iterator[str]:
    """Change modes, owners, times and attributes of files outside."""
    for path in trap["writable"]:
        yield from _got(f"chmod of {path}", os.chmod, path, 0o777)
        yield from _got(f"chown of {path}", os.chown, path, os.getuid(), os.getgid())
        yield from _got(f"utime of {path}", os.utime, path, (1, 1))
        yield from _got(f"setxattr of {path}", os.setxattr, path, "user.a", b"b")
        yield from _got(f"truncate of {path}", os.truncate, path, 0)


def _send(family: int, kind: int, address: Any) -> str:
    with socket.socket(family, kind) as sender:
        sender.settimeout(0.5)
        sender.connect(address)
        sender.send(b"out")
    return "sent"


def network(trap: Trap) -> Iterator[str]:
    """Reach sockets of the machine: TCP, UDP, named and abstract ones."""
    host, datagram, stream = "127.0.0.1", socket.SOCK_DGRAM, socket.SOCK_STREAM
    yield from _got("TCP", _send, socket.AF_INET, stream, (host, trap["tcp"]))
    yield from _got("UDP", _send, socket.AF_INET, datagram, (host, trap["udp"]))
    yield from _got("abstract socket", _send, socket.AF_UNIX, stream, "\0" + trap["abstract"])
    yield from _got("named socket", _send, socket.AF_UNIX, stream, trap["named"])
    yield from _got("raw socket", socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
    yield from _got("netlink", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)
    yield from _got("pair of datagrams", socket.socketpair, socket.AF_UNIX, datagram)


def environment(trap: Trap) -> Iterator[str]:
    """Find anything in the environment, the descriptors and the modules."""
    yield from (f"environment: {name}" for name in os.environ if name != "LC_CTYPE")
    for handle in range(3, 256):
        yield from _got(f"descriptor {handle}", os.fstat, handle)
    ours = [name for name in sys.modules if name.partition(".")[0] in ("services", "banyan")]
    yield from (f"module {name}" for name in ours)
    yield from (f"path {path}" for path in sys.path if path in trap["paths"])
    yield from _got("import", __import__, "services.verifier")


def others(trap: Trap) -> Iterator[str]:
    """Read, signal, trace and slow other processes."""
    for process in trap["processes"]:
        for file in ("mem", "environ", "cmdline", "maps", "fd/0"):
            yield from _got(f"{file} of {process}", _read, f"/proc/{process}/{file}")
        yield from _got(f"signal to {process}", os.kill, process, signal.SIGCONT)
        yield from _got(f"signal to group {process}", os.killpg, process, signal.SIGCONT)
        yield from _got(f"pidfd of {process}", os.pidfd_open, process)
        yield from _got(f"ptrace of {process}", _call, 101, 117, 16, process, 0, 0)
        yield from _got(f"priority of {process}", os.setpriority, os.PRIO_PROCESS, process, 19)
        yield from _got(f"limits of {process}", _call, 302, 261, process, 7, None, _buffer())
        yield from _got(f"cores of {process}", os.sched_setaffinity, process, {0})
    yield from _got("signal to all", os.kill, -1, signal.SIGCONT)
    yield from _got("a list of processes", os.listdir, "/proc")


def _clone_users() -> str:
    if _call(56, 220, ctypes.c_ulong(_NEW_USER | signal.SIGCHLD), 0, 0, 0, 0) == 0:
        os._exit(0)
    return "a child"


def namespaces(trap: Trap) -> Iterator[str]:
    """Make namespaces, users and mounts."""
    yield from _got("unshare of users", _call, 272, 97, _NEW_USER)
    yield from _got("unshare of mounts", _call, 272, 97, _NEW_MOUNTS)
    yield from _got("clone with users", _clone_users)
    yield from _got("clone3", _call, 435, 435, _buffer(), 64)
    yield from _got("setns", _call, 308, 268, 0, 0)
    yield from _got("fsopen", _call, 430, 430, b"tmpfs", 0)
    yield from _got("mount", _call, 165, 40, b"none", b".", b"tmpfs", 0, None)
    yield from _got("chroot", os.chroot, ".")
    yield from _got("another user", os.setuid, 0)
    yield from _got("host name", socket.sethostname, "other")


def kernel(trap: Trap) -> Iterator[str]:
    """Make objects that outlive the run, and enter the kernel where no filter looks."""
    yield from _got("SysV memory", _call, 29, 194, 0x5EED, 4096, 0o1666)
    yield from _got("SysV messages", _call, 68, 186, 0x5EED, 0o1666)
    yield from _got("POSIX queue", _call, 240, 180, b"seed", os.O_CREAT | os.O_RDWR, 0o666, None)
    yield from _got("POSIX memory", _make, "/dev/shm/seed")
    yield from _got("memfd", os.memfd_create, "seed")
    yield from _got("keys", _call, 250, 219, 0, -3, 1)
    yield from _got("io_uring", _call, 425, 425, 4, _buffer())
    yield from _got("bpf", _call, 321, 280, 0, _buffer(), 64)
    yield from _got("perf", _call, 298, 241, _buffer(), 0, -1, -1, 0)
    yield from _got("userfaultfd", _call, 323, 282, 0)
    yield from _got("inotify", _call, 294, 26, 0)
    yield from _got("death signal", _prctl, 1, 0)
    yield from _got("dumpable", _prctl, 4, 1)
    yield from _got("owner of a signal", fcntl.fcntl, 0, fcntl.F_SETOWN, os.getppid())
    yield from _got("typed input", fcntl.ioctl, 0, 0x5412, b"x")


ATTEMPTS: dict[str, Callable[[Trap], Iterator[str]]] = {
    attempt.__name__: attempt
    for attempt in (
        *(reads, writes, attributes, network),
        *(environment, others, namespaces, kernel),
    )
}
