"""The process between the verifier and a zygote, which ends all of a run when either ends.

A zygote that is killed cannot end what its run has started, and the signal at a parent's death
reaches a child but not that child's children. They become children of the guard, which ends them.
"""

import os
import select

from services.verifier.sandbox.confinement import folders, kernel, processes

_GRACE_S = 2.0  # for a zygote to end its run by itself, once the verifier has ended
_END_S = 5.0
_GUARD: list[int] = []  # of this zygote


def protect(channel: int) -> None:
    """Continue in a child, and leave this process behind as its guard.

    channel: descriptor of the socket whose other end the verifier holds.

    The guard removes the working folder, which the verifier must have made for this process.
    Raise SystemExit in any other folder.
    """
    folder = folders.claimed(folders.JAIL)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    zygote = os.fork()
    if zygote:
        _stand_guard(zygote, channel, folder)
    _GUARD.append(guard)


def is_lost() -> bool:
    """Return True if the guard of this zygote has ended: it must end its run, and itself.

    A signal at the guard's death would end the zygote before it could end its run.
    """
    return os.getppid() not in _GUARD


def _stand_guard(zygote: int, channel: int, folder: str) -> None:
    ended = os.pidfd_open(zygote)
    wait = select.poll()
    wait.register(ended, select.POLLIN)
    wait.register(channel, 0)  # its end alone
    if not any(handle == ended for handle, _ in wait.poll()):
        wait.unregister(channel)
        wait.poll(_GRACE_S * 1000)
    processes.end(zygote, alone=False, within_s=_END_S)
    folders.remove(folder)
    os._exit(0)
