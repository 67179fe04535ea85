"""Scorers that the verifier runs in its own process: Banyan's own pure code, listed here by the classes that must be found."""

from collections.abc import Mapping

# A plugin that calls itself safe is not believed: it runs in a child process like all others.
UNCONFINED: Mapping[str, str] = {
    "number": "methods.filter.number:Number",
    "steps": "methods.filter.steps:Steps",
}
UNCONFINED_GROUPS: Mapping[str, str] = {"majority": "methods.filter.majority:Majority"}
