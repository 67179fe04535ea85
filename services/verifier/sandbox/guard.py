"""The process between the verifier and a warm child, which kills everything below when either ends.

A verifier that is killed cannot clean up, and a signal at the parent's death reaches a child but
not that child's children. So the guard waits until the verifier's end of the pipe closes or the
child ends, and then kills everything below.
"""

import os
import select
import signal

from services.verifier.sandbox.confinement import folders, isolation, kernel, processes

_END_S = 5.0


def protect() -> bool:
    """Continue in a child and leave this process behind as its guard.

    Return True if the child has a process namespace of its own. Standard input must be the pipe
    whose other end the verifier holds, and the working folder one that it made for this process:
    the guard removes it. Raise SystemExit in any other folder.
    """
    folder = folders.claimed(folders.SCORER)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    isolated = isolation.enter()
    alive, open_in_child = os.pipe()
    guard = os.getpid()
    child = os.fork()
    if child:
        os.close(open_in_child)
        _stand_guard(child, alive, folder)
    os.close(alive)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (guard, 0):  # 0: the guard is outside the namespace
        os._exit(1)
    return isolated


def _stand_guard(child: int, alive: int, folder: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # the pipe must close with the child: the verifier reads its end from it
    wait = select.poll()
    wait.register(0, 0)  # hang-ups alone
    wait.register(alive, 0)
    wait.poll()
    status = processes.end(child, alone=False, within_s=_END_S).status
    folders.remove(folder)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
