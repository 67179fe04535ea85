"""Scorers: one file of one idea each. Which of them may run in the verifier's own process is decided here, by name."""

from collections.abc import Callable

from banyan.plugins import GroupScorer, Scorer
from methods.filter.majority import Majority
from methods.filter.number import Number
from methods.filter.steps import Steps

# Our own pure code. A plugin that calls itself safe is not believed: it runs in a child process like all others.
SAFE: dict[str, Callable[..., Scorer]] = {"number": Number, "steps": Steps}
SAFE_GROUPS: dict[str, Callable[..., GroupScorer]] = {"majority": Majority}

__all__ = ["SAFE", "SAFE_GROUPS"]
