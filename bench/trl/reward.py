"""Rewards that always vary, so that no group is dropped: equal work for both."""


def varied(count: int) -> list[float]:
    """Return 1 for every other answer of a group, whatever its text."""
    return [float(index % 2) for index in range(count)]
