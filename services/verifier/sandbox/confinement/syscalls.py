"""Families of system calls that a score may not make, by number on x86_64 and aarch64 (0: none)."""

from collections.abc import Iterable

Numbers = tuple[int, int]  # x86_64, aarch64
MACHINES = ("x86_64", "aarch64")
LAST_KNOWN = 462  # mseal, Linux 6.10; newer calls answer ENOSYS, as on an older kernel

# Modes and times of every file that the user owns, which Landlock does not cover. Allowed to a
# user that owns no other files.
MODES: dict[str, Numbers] = {
    "chmod": (90, 0),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, 0),
    "utimes": (235, 0),
    "futimesat": (261, 0),
    "utimensat": (280, 88),
}
# Other attributes, which Landlock does not cover either; truncation by path, which it covers from
# version 3 on.
ATTRIBUTES: dict[str, Numbers] = {
    "chown": (92, 0),
    "fchown": (93, 55),
    "lchown": (94, 0),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "truncate": (76, 45),
}
# Objects that outlive a process outside any folder: a channel from one score to the next, and
# memory outside its limits.
SHARED: dict[str, Numbers] = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
# Other processes of the user, and calls that bypass this filter.
PROCESSES: dict[str, Numbers] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "execveat": (322, 281),
    "inotify_init": (253, 0),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
}
# Changes of the machine, and entrances into the kernel.
MACHINE: dict[str, Numbers] = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}
NEVER = ATTRIBUTES | SHARED | PROCESSES | MACHINE
# Allowed on the calling process alone, that is with 0 as first argument.
OWN: dict[str, Numbers] = {
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
NETWORK: dict[str, Numbers] = {"socket": (41, 198), "connect": (42, 203), "bind": (49, 200)}
STARTS: dict[str, Numbers] = {"fork": (57, 0), "vfork": (58, 0), "execve": (59, 221)}
SIGNALS: dict[str, Numbers] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
SOCKETPAIR: Numbers = (53, 199)
CLONE: Numbers = (56, 220)
CLONE3: Numbers = (435, 435)  # its flags are in memory, invisible to a filter
FCNTL: Numbers = (72, 25)
IOCTL: Numbers = (16, 29)


def numbers(calls: Iterable[Numbers], machine: str) -> list[int]:
    """Return the numbers of calls on a machine."""
    column = MACHINES.index(machine)
    return [pair[column] for pair in calls if pair[column]]
