"""A rollout node that never loads another policy than its first: a planted fault."""

import runpy
from collections.abc import Sequence
from typing import Any

from services.rollout.growth import policy_selection
from services.rollout.growth.policy_selection import Published

_choose = policy_selection.wanted


def first(policies: Sequence[Published], loaded: Any, growing: Any, pending: Any) -> Any:
    """Choose as ever, until a policy is loaded."""
    return _choose(policies, loaded, growing, pending) if loaded is None else None


if __name__ == "__main__":
    policy_selection.wanted = first
    runpy.run_module("services.rollout", run_name="__main__", alter_sys=True)
