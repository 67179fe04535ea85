"""Names of nodes, as they may stand in rows, metrics and messages to people."""

import re

from banyan.errors import InvalidInput

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check(node_id: str) -> None:
    """Raise InvalidInput unless the id is 1 to 64 letters, digits, -, _ and dots."""
    if not _NAME.fullmatch(node_id):
        raise InvalidInput(f"node_id {node_id[:64]!r} must be 1 to 64 letters, digits, -, _ and .")
