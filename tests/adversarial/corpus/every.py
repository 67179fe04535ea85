"""The whole corpus: verdicts on our own pure code, and those on what a process confines."""

from collections.abc import Sequence
from functools import cache

from tests.adversarial.corpus import (
    calls,
    choice,
    exact,
    functions,
    gym,
    majority,
    mathematics,
    number,
    patterns,
    programs,
    shape,
)
from tests.adversarial.corpus.case import Case

PURE = (number, choice, exact, shape, majority, calls)
CONFINED = (patterns, programs, gym, functions, mathematics)


@cache
def pure() -> Sequence[Case]:
    """Return the cases of our own pure code, which runs in the verifier itself."""
    return tuple(case for table in PURE for case in table.every())


@cache
def confined() -> Sequence[Case]:
    """Return the others; making the rows of reasoning-gym takes seconds."""
    return tuple(case for table in CONFINED for case in table.every())
