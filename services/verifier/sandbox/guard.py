"""The process between the verifier and a warm child: it outlives both by a moment, and takes all that they started along.

A verifier that is killed cannot clean up, and a signal at the parent's death reaches a child and
not that child's children. So the guard waits for the verifier's end of the pipe to close, or for
the child to end, and then kills everything below.
"""

import os
import select
import signal

from services.verifier.sandbox.confinement import folders, isolation, kernel, processes

_END_S = 5.0


def protect() -> bool:
    """Go on in a child and leave this process behind as its guard. Whether the child has a process namespace of its own.

    Standard input must be the pipe whose other end the verifier holds.
    """
    folder = os.getcwd()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    isolated = isolation.enter()
    alive, held = os.pipe()
    guard = os.getpid()
    child = os.fork()
    if child:
        os.close(held)
        _stand(child, alive, folder)
    os.close(alive)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (guard, 0):  # 0: the guard is outside the namespace
        os._exit(1)
    return isolated


def _stand(child: int, alive: int, folder: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # the verifier hears of the child's end by this pipe
    wait = select.poll()
    wait.register(0, 0)  # hang-ups alone
    wait.register(alive, 0)
    wait.poll()
    status = processes.end(child, alone=False, within_s=_END_S).status
    folders.remove(folder)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
