"""External tools: the error in place of a call, and the key of a call."""

from banyan.digest import blake


class NotBegun(Exception):
    """Raised by a step that would change something outside and has no idempotency key.

    tool: name of the tool, which was not called
    """

    def __init__(self, tool: str) -> None:
        super().__init__(f"tool {tool} changes something outside; its effect was not begun")
        self.tool = tool


def idempotency_key(tree_id: bytes, action: bytes) -> str:
    """Return the key of an action's effect: 64 hexadecimal digits, the same in every process."""
    return blake(b"banyan.effect.v1", tree_id, action).hex()
