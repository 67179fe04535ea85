"""The confinement of a run without namespaces: Landlock, the filter, limits and a user of its own.

For a pod without rights. Sums over processes are watched from outside (`usage`).
"""

import os
import resource
import signal
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from banyan.programs.run import THREADS, Limits
from services.verifier.jail import allow_list
from services.verifier.jail.inside import child, usage
from services.verifier.jail.inside.supervise import Ended, supervise
from services.verifier.sandbox.confinement import (
    folders,
    isolation,
    kernel,
    landlock,
    priority,
    reachable,
    seccomp,
)
from services.verifier.sandbox.limits import threads_of

_MAX_ENTRIES = 10_000  # of a run's folder that are removed; with more the zygote is replaced


class Cell:
    """Runs without namespaces, one at a time.

    readable: paths that a program may read.
    listable: folders of which it may list the names.

    Raises OSError without Landlock.
    """

    rules = "landlock, seccomp, sums watched"

    def __init__(self, readable: Sequence[str], listable: Sequence[str]) -> None:
        self._user = isolation.own_user() if os.geteuid() == 0 else None
        if self._user is not None and not reachable.make_reachable((*listable, os.getcwd())):
            raise OSError("another user cannot reach the folders of the interpreter")
        reading = landlock.reading(readable, listable, os.getcwd())
        if reading is None:
            raise OSError("the kernel has no Landlock")
        self._reading = reading

    def run(self, limits: Limits, streams: Sequence[int], channel: socket.socket) -> Ended:
        """Run a program in a folder of its own. Raises OSError if it cannot be confined."""
        folder = tempfile.mkdtemp(dir=os.getcwd())
        if self._user is not None:
            os.chown(folder, self._user, self._user)
        confine = partial(self._confine, limits, folder, os.getpid(), self._others())
        process = child.fork(streams, confine, [self._reading])
        ended = supervise(process, channel, limits, full=partial(_is_full, folder, limits))
        is_clean = folders.remove(folder, _MAX_ENTRIES)
        return replace(ended, clean=ended.clean and is_clean)

    def close(self) -> None:
        """Do nothing: all is in the zygote's folder, which the parent removes."""

    def _others(self) -> int:
        """Return the threads of the runs' user beside those of the run."""
        return 0 if self._user is not None else threads_of(os.getuid())

    def _confine(self, limits: Limits, folder: str, zygote: int, others: int) -> None:
        os.setpgid(0, 0)  # in the session of the zygote, which gives way to services
        priority.give_way_to_child()
        own_limits(limits, others + 1 + THREADS + limits.processes)
        os.chdir(folder)
        landlock.restrict(self._reading)
        os.close(self._reading)
        landlock.restrict_writing((folder, "/dev/null"), network=False)
        become(self._user)
        die_with(zygote)
        allow(limits)


def _is_full(folder: str, limits: Limits) -> bool:
    size, entries = usage.of_folder(folder, limits.files)
    return size > limits.disk_mb << 20 or entries > limits.files


def own_limits(limits: Limits, threads: int) -> None:
    """Set the limits that the kernel keeps for each process."""
    kept = {
        resource.RLIMIT_CPU: int(limits.cpu_s) + 2,  # the sum is watched, and more exactly
        resource.RLIMIT_AS: _address_space() + (limits.memory_mb << 20),
        resource.RLIMIT_FSIZE: max(limits.disk_mb, 1) << 20,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: threads,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in kept.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def become(user: int | None) -> None:
    """Become a user without groups and capabilities."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def die_with(zygote: int) -> None:
    """End with the zygote. After the change of user, which clears this."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:  # it ended before
        os._exit(1)


def allow(limits: Limits) -> None:
    """Refuse all system calls but those of the list."""
    filtered = allow_list.program(kernel.MACHINE, processes=limits.processes > 0)
    seccomp.install(allow_list.of_process(filtered, os.getpid()))


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
