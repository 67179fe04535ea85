"""The seccomp filter of a jail: system calls that a program may make; all others are refused.

Calls that reach other processes, other users, the machine, sockets or objects that outlive the run
are absent. Of those that do harm by their arguments, the arguments are checked.
"""

import errno
import struct

Numbers = tuple[int, int]  # x86_64, aarch64; 0: none
MACHINES = ("x86_64", "aarch64")
_ARCHES = (0xC000003E, 0xC00000B7)
_X32 = 0x40000000

MEMORY: dict[str, Numbers] = {
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "msync": (26, 227),
    "mincore": (27, 232),
    "madvise": (28, 233),
}
FILES: dict[str, Numbers] = {
    "read": (0, 63),
    "write": (1, 64),
    "open": (2, 0),
    "close": (3, 57),
    "stat": (4, 0),
    "fstat": (5, 80),
    "lstat": (6, 0),
    "lseek": (8, 62),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, 0),
    "pipe": (22, 0),
    "dup": (32, 23),
    "dup2": (33, 0),
    "sendfile": (40, 71),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "ftruncate": (77, 46),
    "getdents": (78, 0),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "rename": (82, 0),
    "mkdir": (83, 0),
    "rmdir": (84, 0),
    "creat": (85, 0),
    "link": (86, 0),
    "unlink": (87, 0),
    "symlink": (88, 0),
    "readlink": (89, 0),
    "umask": (95, 166),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "getdents64": (217, 61),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "newfstatat": (262, 79),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "linkat": (265, 37),
    "symlinkat": (266, 36),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "splice": (275, 76),
    "fallocate": (285, 47),
    "dup3": (292, 24),
    "pipe2": (293, 59),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "renameat2": (316, 276),
    "copy_file_range": (326, 285),
    "preadv2": (327, 286),
    "pwritev2": (328, 287),
    "statx": (332, 291),
    "close_range": (436, 436),
    "openat2": (437, 437),
    "faccessat2": (439, 439),
}
WAITS: dict[str, Numbers] = {
    "poll": (7, 0),
    "select": (23, 0),
    "sched_yield": (24, 124),
    "pause": (34, 0),
    "nanosleep": (35, 101),
    "getitimer": (36, 102),
    "alarm": (37, 0),
    "setitimer": (38, 103),
    "restart_syscall": (219, 128),
    "futex": (202, 98),
    "epoll_create": (213, 0),
    "clock_nanosleep": (230, 115),
    "epoll_wait": (232, 0),
    "epoll_ctl": (233, 21),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "epoll_pwait": (281, 22),
    "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87),
    "eventfd2": (290, 19),
    "epoll_create1": (291, 20),
    "epoll_pwait2": (441, 441),
    "futex_waitv": (449, 449),
}
OWN: dict[str, Numbers] = {
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "getpid": (39, 172),
    "exit": (60, 93),
    "wait4": (61, 260),
    "uname": (63, 160),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "getpgrp": (111, 0),
    "getgroups": (115, 158),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getpgid": (121, 155),
    "getsid": (124, 156),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "getpriority": (140, 141),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "arch_prctl": (158, 0),
    "gettid": (186, 178),
    "time": (201, 0),
    "sched_getaffinity": (204, 123),
    "set_tid_address": (218, 96),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "exit_group": (231, 94),
    "waitid": (247, 95),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "getcpu": (309, 168),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "rseq": (334, 293),
}
STARTS: dict[str, Numbers] = {"fork": (57, 0), "vfork": (58, 0), "execve": (59, 221)}
_CLONE: Numbers = (56, 220)
_CLONE3: Numbers = (435, 435)  # its flags are in memory, which a filter cannot see
_FCNTL: Numbers = (72, 25)
_IOCTL: Numbers = (16, 29)
_PRCTL: Numbers = (157, 167)
_PRLIMIT: Numbers = (302, 261)
_KILL: Numbers = (62, 129)
_TGKILL: Numbers = (234, 131)
_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020080  # all CLONE_NEW*, that of time included
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC,
# F_GETPIPE_SZ. Others mark files, or name the process that a file signals.
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
# TCGETS, TCGETS2, FIONREAD, FIONBIO, TIOCGWINSZ, FIONCLEX, FIOCLEX.
_IOCTLS = (0x5401, 0x802C542A, 0x541B, 0x5421, 0x5413, 0x5450, 0x5451)
# PR_SET_NAME, PR_GET_NAME, PR_SET_VMA. Others would outlive the parent's death or read memory.
_PRCTLS = (15, 16, 0x53564D41)
_SIGKILL = 9  # only from outside, so that its cause is known
_SELF = 0x5E1F5E1F  # stands for the id of the process until that is known

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCH_AT = 0, 4
_ARGUMENTS_AT = (16, 24, 32)  # low halves, of which the kernel reads these arguments


def program(machine: str, *, processes: bool) -> bytes:
    """Return the filter's instructions. Raises ValueError for an unknown machine.

    processes: new processes may be started.
    """
    if machine not in MACHINES:
        raise ValueError(f"no system calls are known for {machine}; known: {', '.join(MACHINES)}")
    column = MACHINES.index(machine)
    plain = [*MEMORY.values(), *FILES.values(), *WAITS.values(), *OWN.values()]
    plain += STARTS.values() if processes else ()
    code = [_step(_LOAD, _ARCH_AT), _step(_JUMP_EQ, _ARCHES[column], 1, 0), _refuse(errno.EPERM)]
    code += [_step(_LOAD, _NUMBER_AT), _step(_JUMP_GE, _X32, 0, 1), _refuse(errno.EPERM)]
    for pair in plain:
        if pair[column] or not column:  # 0 is a call on x86_64 alone
            code += [_step(_JUMP_EQ, pair[column], 0, 1), _step(_RETURN, _ALLOW)]
    code += [_step(_JUMP_EQ, _CLONE3[column], 0, 1), _refuse(errno.ENOSYS)]
    code += _case(_CLONE[column], _clone(processes))
    for call, argument, values in (
        (_FCNTL, 1, _FCNTLS),
        (_IOCTL, 1, _IOCTLS),
        (_PRCTL, 0, _PRCTLS),
        (_PRLIMIT, 0, (0,)),  # limits of this process alone
    ):
        code += _case(call[column], _one_of(argument, values))
    code += _case(_KILL[column], _signals(1, processes))
    code += _case(_TGKILL[column], _signals(2, processes))
    return b"".join([*code, _refuse(errno.EPERM)])


def of_process(program: bytes, process: int) -> bytes:
    """Return the filter for one process, which may send signals to itself alone."""
    return program.replace(struct.pack("<I", _SELF), struct.pack("<I", process))


def _case(number: int, steps: list[bytes]) -> list[bytes]:
    """Return steps for one call; they end in a result."""
    return [_step(_JUMP_EQ, number, 0, len(steps)), *steps]


def _clone(processes: bool) -> list[bytes]:
    steps = [_step(_LOAD, _ARGUMENTS_AT[0]), _step(_JUMP_SET, _CLONE_NEW, 0, 1)]
    steps.append(_refuse(errno.EPERM))
    if not processes:
        steps += [_step(_JUMP_SET, _CLONE_THREAD, 1, 0), _refuse(errno.EPERM)]
    return [*steps, _step(_RETURN, _ALLOW)]


def _one_of(argument: int, values: tuple[int, ...]) -> list[bytes]:
    steps = [_step(_LOAD, _ARGUMENTS_AT[argument])]
    for value in values:
        steps += [_step(_JUMP_EQ, value, 0, 1), _step(_RETURN, _ALLOW)]
    return [*steps, _refuse(errno.EPERM)]


def _signals(argument: int, processes: bool) -> list[bytes]:
    """Return steps that allow signals but SIGKILL, without other processes to itself alone."""
    steps = [_step(_LOAD, _ARGUMENTS_AT[argument]), _step(_JUMP_EQ, _SIGKILL, 0, 1)]
    steps.append(_refuse(errno.EPERM))
    if not processes:
        steps += [_step(_LOAD, _ARGUMENTS_AT[0]), _step(_JUMP_EQ, _SELF, 1, 0)]
        steps.append(_refuse(errno.EPERM))
    return [*steps, _step(_RETURN, _ALLOW)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)
