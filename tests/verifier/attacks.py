"""Attacks by a completion that runs as code in its own score: 1 for a success, else the error."""

import ctypes
import os
import time
from pathlib import Path

HERE = Path(__file__).parent
libc = ctypes.CDLL(None, use_errno=True)


def attack(completion, **row):
    """Call the function named by the completion's first word; one warm child serves them all."""
    name, _, argument = completion.partition(" ")
    return globals()[name](argument)


def reads(completion, **row):
    """Return the length of a file beside this module."""
    return float(len((HERE / completion).read_bytes()))


def imports(completion, **row):
    """Return the value of a module beside this one, imported only now."""
    return float(__import__(completion).VALUE)


def lists(completion, **row):
    return float(len(os.listdir(HERE)))


def chmod(completion, **row):
    os.chmod(HERE / "open.txt", 0o777)
    return 1.0


def fchmod(completion, **row):
    with open(HERE / "open.txt") as file:
        os.fchmod(file.fileno(), 0o777)
    return 1.0


def chown(completion, **row):
    os.chown(HERE / "open.txt", os.getuid(), -1)
    return 1.0


def utime(completion, **row):
    os.utime(HERE / "open.txt", (1, 1))
    return 1.0


def setxattr(completion, **row):
    os.setxattr(HERE / "open.txt", b"user.word", b"x")
    return 1.0


def truncate(completion, **row):
    os.truncate(HERE / "open.txt", 0)
    return 1.0


def capabilities(completion, **row):
    """Return the number of capabilities; a user namespace's first processes have all."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    _called(libc.capget(header, sets))
    return float(sum(bin(word).count("1") for word in sets))


def copies(completion, **row):
    """Copy a file with its mode: no attack where the user is the score's own."""
    import shutil

    Path("a").write_text("x")
    shutil.copy2("a", "b")
    return 1.0


def _called(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return 1.0


def shm(completion, **row):
    return _called(libc.shmget(0x62616E, 1 << 20, 0o1666))


def msg(completion, **row):
    return _called(libc.msgget(0x62616E, 0o1666))


def sem(completion, **row):
    return _called(libc.semget(0x62616E, 1, 0o1666))


def mq(completion, **row):
    return _called(libc.mq_open(b"/banyan-test", os.O_CREAT | os.O_RDWR, 0o666, None))


def unshare(completion, **row):
    return _called(libc.unshare(0x10000000))


def setns(completion, **row):
    return _called(libc.setns(0, 0x10000000))


def _raw(number, *arguments):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument) for argument in arguments])


def clone_newuser(completion, **row):
    """Call clone with CLONE_NEWUSER and SIGCHLD, by its number on x86_64 or aarch64."""
    number = 56 if os.uname().machine == "x86_64" else 220
    made = _raw(number, 0x10000000 | 17, 0, 0, 0, 0)
    if made == 0:
        os._exit(0)
    return _called(made)


def clone3(completion, **row):
    """Call clone3, which must be ENOSYS, so that the C library falls back to clone."""
    arguments = (ctypes.c_uint64 * 11)()
    arguments[0], arguments[4] = 0x10000000, 17
    made = libc.syscall(ctypes.c_long(435), arguments, ctypes.c_long(88))
    if made == 0:
        os._exit(0)
    return _called(made)


def memfd(completion, **row):
    return float(os.memfd_create("x") >= 0)


def pidfd(completion, **row):
    return float(os.pidfd_open(os.getppid()) >= 0)


def ptrace(completion, **row):
    return _called(libc.ptrace(16, os.getppid(), 0, 0))


def parents_limits(completion, **row):
    """Set limits of the parent process, as another process of the same user may."""
    import resource

    resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))
    return 1.0


def parents_cores(completion, **row):
    os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))
    return 1.0


def niceness(completion, **row):
    os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)
    return 1.0


def owner(completion, **row):
    """Send a signal to the parent process by the owner of a file."""
    import fcntl

    reader, _writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getppid())
    return 1.0


def _asked(request, value):
    """Make an ioctl on a file that is open for reading alone."""
    import fcntl

    with open(HERE / "open.txt") as file:
        fcntl.ioctl(file, request, value)
    return 1.0


def flags(completion, **row):
    """Call FS_IOC_SETFLAGS: the flag that excludes a file from backups."""
    return _asked(0x40086602, (0x40).to_bytes(8, "little"))


def project_id(completion, **row):
    """Call FS_IOC_FSSETXATTR."""
    return _asked(0x401C5820, (0x80).to_bytes(4, "little") + bytes(24))


def generation(completion, **row):
    """Call FS_IOC_SETVERSION."""
    return _asked(0x40087602, (77).to_bytes(8, "little"))


def hint(completion, **row):
    """Call F_SET_RW_HINT, which stays with the file for the next score."""
    import fcntl

    with open(HERE / "open.txt") as file:
        fcntl.fcntl(file, 1036, (4).to_bytes(8, "little"))
    return 1.0


def lease(completion, **row):
    """Call F_SETLEASE: the owner's writes wait for it."""
    import fcntl

    with open(HERE / "open.txt") as file:
        fcntl.fcntl(file, 1024, fcntl.F_RDLCK)
    return 1.0


def notified(completion, **row):
    """Call F_NOTIFY: a signal when something in the folder changes."""
    import fcntl

    fcntl.fcntl(os.open(HERE, os.O_RDONLY), 1026, 2)
    return 1.0


def sockets_owner(completion, **row):
    """Send a signal to the parent process by FIOSETOWN of a socket."""
    import fcntl
    import socket

    fcntl.ioctl(socket.socketpair()[0], 0x8901, os.getppid().to_bytes(4, "little"))
    return 1.0


def datagram(completion, **row):
    """Send a datagram to a socket in the file system, such as a machine's log."""
    import socket

    one, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", str(HERE / "listens"))
    return 1.0


def loops(completion, **row):
    """Run an event loop, with its pair of non-blocking sockets: no attack."""
    import asyncio

    async def said():
        return await asyncio.to_thread(lambda: 4.0)

    return asyncio.run(said())


def inotify(completion, **row):
    return _called(libc.inotify_init())


def io_uring(completion, **row):
    return _called(_raw(425, 1, 0))


def keyring(completion, **row):
    return _called(_raw(250 if os.uname().machine == "x86_64" else 219, 0, -3, 1))


def fsopen(completion, **row):
    return _called(_raw(430, 0, 0))


def newer_call(completion, **row):
    """Make a system call of a kernel newer than the filter."""
    return _called(_raw(463, 0, 0))


def deep(completion, **row):
    for _ in range(3000):
        os.mkdir("d", 0o700)
        os.chdir("d")
    return 1.0


def closed_folders(completion, **row):
    """Make folders that their owner may not enter as they are."""
    os.mkdir("a")
    os.makedirs("a/b/c")
    Path("a/b/c/file").write_text("x")
    os.umask(0)
    os.mkdir("shut", 0o000)
    return 1.0


def many_files(completion, **row):
    for number in range(12_000):
        os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY))
    return 1.0


def moves(completion, **row):
    """Move files between folders of the score's own: no attack."""
    os.makedirs("a")
    os.makedirs("b")
    Path("a/x").write_text("x")
    os.rename("a/x", "b/y")
    return float(Path("b/y").read_text() == "x")


def bomb(completion, **row):
    """Fork without end in every process, and never end."""
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            time.sleep(0.01)


def polite(completion, **row):
    """Start a process and return its output, as scorers may."""
    import subprocess

    return float(
        subprocess.run(["/bin/echo", "5"], capture_output=True, check=True, timeout=5).stdout
    )


def daemon(completion, **row):
    """Leave a process in a session of its own that works in this folder, then wait."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sleep", ["/bin/sleep", completion])
        os._exit(0)
    time.sleep(3600)
