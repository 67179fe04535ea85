"""Errors of servers that have tools: none of them is the action's doing."""


class ServerFailed(Exception):
    """Raised by a step whose server does not do as its protocol says before a tool is called.

    end: how its program ended and what it wrote at last, for who wrote the recipe; empty if that is
        not known. It is no part of the message, which may become an answer.
    """

    def __init__(self, message: str, end: str = "") -> None:
        super().__init__(message)
        self.end = end


class ServerChanged(Exception):
    """Raised by a step whose server has other tools than those that the recipe froze."""
