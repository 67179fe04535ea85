"""Scorers that run in the verifier's own process: Banyan's own pure code, listed by class.

A name counts only if it leads to the class listed here. Every other scorer runs in a child process.
"""

from collections.abc import Mapping

UNCONFINED: Mapping[str, str] = {
    "number": "methods.filter.number:Number",
    "steps": "methods.filter.steps:Steps",
}
UNCONFINED_GROUPS: Mapping[str, str] = {"majority": "methods.filter.majority:Majority"}
