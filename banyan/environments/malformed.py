"""The error of an action in which no call can be read."""


class Malformed(ValueError):
    """Raised by a step: its answer is MALFORMED, where that to any other error is FAILED."""
