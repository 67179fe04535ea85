"""Parts of arms whose policy has a learned head, and whose held-out rows vote by it."""

from collections.abc import Mapping
from typing import Any

WIDTH = 16  # answers of a prompt, and of a row that votes
ROWS = 256  # held-out rows that vote
COLD = 4  # gradient steps before the head's scores are used


def changes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's head and votes, over the recipe's own trees with other settings."""
    votes = {"policy": "recipe", "settings": dict(settings), "weight": "head"}
    return {"optimise": {"head": {"cold_steps": COLD}}, "eval": {"votes": votes}}
