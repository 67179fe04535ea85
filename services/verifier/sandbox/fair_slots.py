"""Slots that runs share in turn; within a run first come, first served."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator

_Turn = asyncio.Future[None]


class FairSlots:
    """A bounded number of slots; a freed one goes to a run with the fewest, to such runs in turn.

    Turns alone would leave all slots to the run with the longest scores, because each of its turns
    lasts longer. No state is kept of a run that neither waits nor has a slot.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._in_use: Counter[str] = Counter()
        # Runs in the order of their turns; no queue is empty.
        self._waiting: dict[str, deque[_Turn]] = {}

    @contextlib.asynccontextmanager
    async def slot(self, run_id: str) -> AsyncIterator[None]:
        """Hold a slot for a score of this run, once it is its turn."""
        await self._acquire(run_id)
        try:
            yield
        finally:
            self._release(run_id)

    async def _acquire(self, run_id: str) -> None:
        turn: _Turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, deque()).append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(run_id, turn)
            else:  # it was served at the same moment, and must pass the slot on
                self._release(run_id, unused=True)
            raise

    def _release(self, run_id: str, *, unused: bool = False) -> None:
        self._free += 1
        self._in_use[run_id] -= 1
        if not self._in_use[run_id]:
            del self._in_use[run_id]
        if turns := self._waiting.pop(run_id, None):
            if unused:  # its turn is still to come
                self._waiting = {run_id: turns, **self._waiting}
            else:  # it has just had a slot: the other runs go first
                self._waiting[run_id] = turns
        self._serve()

    def _serve(self) -> None:
        while self._free and self._waiting:
            # Of several runs with the fewest slots, min returns the first in order.
            run_id = min(self._waiting, key=lambda waiting: self._in_use[waiting])
            turn = self._waiting[run_id].popleft()
            if not self._waiting[run_id]:
                del self._waiting[run_id]
            if turn.done():  # it was cancelled and has not left yet; the turn remains its run's
                continue
            if run_id in self._waiting:
                self._waiting[run_id] = self._waiting.pop(run_id)  # last in order
            self._free -= 1
            self._in_use[run_id] += 1
            turn.set_result(None)

    def _leave(self, run_id: str, turn: _Turn) -> None:
        turns = self._waiting.get(run_id, deque())
        with contextlib.suppress(ValueError):  # it has been skipped already
            turns.remove(turn)
        if not turns:
            self._waiting.pop(run_id, None)
