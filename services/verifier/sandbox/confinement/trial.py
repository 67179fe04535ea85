"""What this machine lacks to confine a score, found by trying it."""

import os
from collections.abc import Sequence

from services.verifier.sandbox.confinement import isolation, landlock, seccomp

LANDLOCK = "Landlock (a kernel from 5.13 with it switched on)"
SECCOMP = "seccomp filters (on x86_64 or aarch64)"


def missing() -> list[str]:
    """Names of what cannot be applied, tried in a process that ends at once."""
    process = os.fork()
    if process == 0:
        found = 4
        try:
            found = _tried()
        finally:
            os._exit(found)
    found = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return [
        name for bit, name in ((1, LANDLOCK), (2, SECCOMP)) if found & bit or not 0 <= found < 4
    ]


def _tried() -> int:
    found = 0
    try:
        rules = landlock.reading((), (), "/")
        if rules is None:
            found |= 1
        else:
            landlock.restrict(rules)
            landlock.restrict_writing((), network=False)
    except OSError:
        found |= 1
    try:
        found |= (
            0 if seccomp.apply(network=False, processes=False, signals=False, modes=False) else 2
        )
    except OSError:
        found |= 2
    return found


def summary() -> str:
    """What confines scores on this machine. Raises OSError with what is missing, and what to do."""
    if names := missing():
        raise OSError(refusal(names))
    turns = (
        "each scorer's processes have a namespace"
        if isolation.possible()
        else "scorers that start processes take turns"
    )
    return f"Landlock {landlock.version()} and seccomp filters; {turns}"


def refusal(names: Sequence[str]) -> str:
    """Why nothing is scored here, and what to do."""
    return (
        f"this machine cannot confine scorers: it lacks {' and '.join(names)}; score on one that can, or, where completions"
        " are trusted, set allow_unconfined_scorers: true in the recipe, or BANYAN_ALLOW_UNCONFINED_SCORERS=1"
    )
