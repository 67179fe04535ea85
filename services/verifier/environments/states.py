"""States of environments by the action that left them: a cache, which may lose any at any time."""

from collections import OrderedDict


class States:
    """The states that were used last, up to a number of bytes.

    most: bytes in all.
    """

    _OVERHEAD = 200  # bytes of an entry beside its state

    def __init__(self, most: int = 64 << 20) -> None:
        self._most, self._size = most, 0
        self._states: OrderedDict[bytes, bytes] = OrderedDict()

    def get(self, action: bytes) -> bytes | None:
        """Return the state behind an action; None if it is not here any more."""
        if action in self._states:
            self._states.move_to_end(action)
        return self._states.get(action)

    def put(self, action: bytes, state: bytes) -> None:
        """Keep a state, and lose those that were not used for longest."""
        if action in self._states:
            self._size -= self._cost(self._states.pop(action))
        self._states[action] = state
        self._size += self._cost(state)
        while self._size > self._most and len(self._states) > 1:
            self._size -= self._cost(self._states.popitem(last=False)[1])

    def _cost(self, state: bytes) -> int:
        return len(state) + self._OVERHEAD
