"""The priority of scores and programs, below that of services, whose loops then wait for none.

A kernel with autogroups shares processor time among sessions first, and niceness counts within each
alone; so the session of a child gives way as well.
"""

import contextlib
import errno
import os
import time

YIELDING = 10  # a warm child is nicer than its service by so much
# Its session and control group give way less: where all cores are busy they still get a third of
# what a service gets. Where the kernel has neither, niceness alone decides, and leaves a ninth.
YIELDING_TOGETHER = 5
_OF_ATTEMPT = 5  # and an attempt than the child, which ends it
_NICEST = 19
_WITHIN_S = 2.0
_EVERY_S = 0.05


def below(service: int) -> int:
    """Return the niceness of the children of a service's process."""
    return min(_NICEST, os.getpriority(os.PRIO_PROCESS, service) + YIELDING)


def yield_from_start(process: int) -> None:
    """Let a child that was just started in a session of its own give way while it imports."""
    with contextlib.suppress(OSError):  # it has ended, or will say it by itself
        os.setpriority(os.PRIO_PROCESS, process, below(os.getpid()))
        _say(str(process))


def give_way(niceness: int) -> None:
    """Give way to services, with all processes that will be in this one's session."""
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    deadline = time.monotonic() + _WITHIN_S
    while True:
        try:
            _say("self")
        except OSError as error:
            # Users other than root may say it ten times a second, all together.
            if error.errno == errno.EAGAIN and time.monotonic() < deadline:
                time.sleep(_EVERY_S)
                continue
        return


def give_way_to_child() -> None:
    """Give way, as an attempt, to the child that forked it."""
    os.nice(_OF_ATTEMPT)


def weight() -> int:
    """Return what a control group of attempts counts, if a group of services counts 1,024."""
    return round(1024 / 1.25**YIELDING_TOGETHER)


def _say(process: str) -> None:
    with open(f"/proc/{process}/autogroup", "w") as file:
        file.write(str(YIELDING_TOGETHER))
