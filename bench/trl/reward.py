"""Rewards that always vary, so that no group is dropped: the same work for both."""


def varied(count: int) -> list[float]:
    """Of a group: 1 for every other answer, whatever it says."""
    return [float(index % 2) for index in range(count)]
