"""A trial of the confinement on this machine, and the names of its missing parts."""

import os
from collections.abc import Sequence

from services.verifier.sandbox.confinement import isolation, landlock, seccomp

LANDLOCK = "Landlock (a kernel from 5.13 with it switched on)"
SECCOMP = "seccomp filters (on x86_64 or aarch64)"
_NO_LANDLOCK, _NO_SECCOMP, _FAILED = 1, 2, 4
_PARTS = ((_NO_LANDLOCK, LANDLOCK), (_NO_SECCOMP, SECCOMP))


def missing() -> list[str]:
    """Return the names of the missing parts, tried in a process that ends at once."""
    process = os.fork()
    if process == 0:
        status = _FAILED
        try:
            status = _try()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not 0 <= status < _FAILED:  # the trial itself failed
        return [LANDLOCK, SECCOMP]
    return [name for bit, name in _PARTS if status & bit]


def _try() -> int:
    """Return the bits of the missing parts."""
    status = 0
    try:
        rules = landlock.reading((), (), "/")
        if rules is None:
            status |= _NO_LANDLOCK
        else:
            landlock.restrict(rules)
            landlock.restrict_writing((), network=False)
    except OSError:
        status |= _NO_LANDLOCK
    try:
        if not seccomp.apply(network=False, processes=False, signals=False, modes=False):
            status |= _NO_SECCOMP
    except OSError:
        status |= _NO_SECCOMP
    return status


def summary() -> str:
    """Return a description of the confinement. Raise OSError with missing parts and the remedy."""
    if names := missing():
        raise OSError(refusal(names))
    if isolation.possible():
        processes = "each scorer's processes have a namespace"
    else:
        processes = "scorers that start processes take turns"
    return f"Landlock {landlock.version()} and seccomp filters; {processes}"


def refusal(names: Sequence[str]) -> str:
    """Return the reason why nothing is scored here, with a remedy."""
    return (
        f"this machine cannot confine scorers: it lacks {' and '.join(names)}; score on one that"
        " can, or, where completions are trusted, set allow_unconfined_scorers: true in the recipe,"
        " or BANYAN_ALLOW_UNCONFINED_SCORERS=1"
    )
