"""What a node may be called: rows, metrics and messages to people name it."""

import re

from banyan.errors import InvalidInput

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check(node_id: str) -> None:
    """Raises InvalidInput for anything else."""
    if not _NAME.fullmatch(node_id):
        raise InvalidInput(f"node_id {node_id[:64]!r} must be 1 to 64 letters, digits, -, _ and .")
