"""The confinement of a run in namespaces of its own.

Each run gets users, mounts, processes, objects of IPC, a network without interfaces, a host name
and control groups of its own; a root folder that holds the interpreter alone, and one folder in
memory with limits of bytes and files. It is the first process of its process namespace, so all of
it ends with it.
"""

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from banyan.programs.run import THREADS, Limits, Outcome
from services.verifier.jail.inside import bare, cgroups, child, root_folder
from services.verifier.jail.inside.supervise import Ended, supervise
from services.verifier.sandbox.confinement import isolation, kernel, priority

_OF_RUN = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)


class Cell:
    """Runs in namespaces, one at a time.

    readable: paths that a program may read.
    listable: of no use here: nothing else is there.

    Raises OSError where the kernel refuses a part.
    """

    def __init__(self, readable: Sequence[str], listable: Sequence[str]) -> None:
        self._user = isolation.own_user() if os.geteuid() == 0 else os.geteuid()
        self._groups: cgroups.Groups | None = None
        _own_mounts()
        self._root = root_folder.place(readable)
        root_folder.make(self._root, readable)
        if os.geteuid() == 0:
            self._groups = cgroups.make()
        counted = self._groups.rules if self._groups else "sums watched"
        self.rules = f"seccomp, {counted}"

    def run(self, limits: Limits, streams: Sequence[int], channel: socket.socket) -> Ended:
        """Run a program in namespaces of its own. Raises OSError if it cannot be confined."""
        kills = 0
        if self._groups is not None:
            self._groups.limit(limits)
            kills = self._groups.memory_kills()
        process = child.fork(streams, partial(self._confine, limits, os.getpid()), ())
        ended = supervise(process, channel, limits, own=1)
        if self._groups is not None and self._groups.memory_kills() > kills:
            return replace(ended, cause=Outcome.MEMORY)
        return ended

    def close(self) -> None:
        """Remove the control groups."""
        if self._groups is not None:
            self._groups.remove()

    def _confine(self, limits: Limits, zygote: int) -> None:
        os.setpgid(0, 0)  # in the session of the zygote, which gives way to services
        priority.give_way_to_child()
        bare.die_with(zygote)
        # Only a child of this process is in a new process namespace.
        kernel.unshare(kernel.CLONE_NEWPID)
        if process := os.fork():
            _end_as(process)
        if self._groups is not None:
            self._groups.enter()
        root = os.geteuid() == 0
        bare.become(self._user if root else None)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else its maps of users belong to root
        kernel.unshare(_OF_RUN)
        _map_users(self._user)
        kernel.sethostname("jail")
        bare.own_limits(limits, 1 + limits.processes + THREADS)
        root_folder.enter(self._root, self._user, limits.disk_mb, limits.files)
        bare.become(None)
        bare.die_with(0)  # the parent is outside of the process namespace
        bare.allow(limits)


def _end_as(process: int) -> NoReturn:
    """Wait for the run, and end as it ends."""
    os.closerange(0, 1024)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status < 0:
        os.kill(os.getpid(), -status)
        signal.pause()
    os._exit(status)


def _own_mounts() -> None:
    """Give this process mounts of its own, and the rights to make them."""
    if os.geteuid() != 0:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        _map_users(user, group)
    kernel.own_mounts()


def _map_users(user: int, group: int | None = None) -> None:
    """Map one user and one group into the user namespace that this process has made."""
    group = user if group is None else group
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
