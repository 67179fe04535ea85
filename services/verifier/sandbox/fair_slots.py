"""Slots that runs share: whoever waits is served run by run in turn, and within a run first come, first served."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator

_Turn = asyncio.Future[None]


class FairSlots:
    """A bounded number of slots. A freed one goes to a run that holds the fewest; of such runs, to each in turn.

    The fewest, because turns alone would leave all slots to the run with the longest scores: each
    of its turns lasts longer. Nothing is kept of a run that neither waits nor holds a slot.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held: Counter[str] = Counter()
        self._waiting: dict[
            str, deque[_Turn]
        ] = {}  # runs in the order of their turns; none is empty

    @contextlib.asynccontextmanager
    async def slot(self, run_id: str) -> AsyncIterator[None]:
        """A slot for a score of this run, once it is its turn."""
        await self._take(run_id)
        try:
            yield
        finally:
            self._give_back(run_id)

    async def _take(self, run_id: str) -> None:
        turn: _Turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, deque()).append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(run_id, turn)
            else:  # it was served in the same moment, and the slot is nobody else's yet
                self._give_back(run_id)
            raise

    def _give_back(self, run_id: str) -> None:
        self._free += 1
        self._held[run_id] -= 1
        if not self._held[run_id]:
            del self._held[run_id]
        if run_id in self._waiting:  # it had a slot just now: whoever waits goes before it
            self._waiting[run_id] = self._waiting.pop(run_id)
        self._serve()

    def _serve(self) -> None:
        while self._free and self._waiting:
            run_id = min(
                self._waiting, key=lambda waiting: self._held[waiting]
            )  # of equals the first in order
            turns = self._waiting.pop(run_id)
            turn = turns.popleft()
            if turns:
                self._waiting[run_id] = turns  # last in order
            if not turn.done():  # one that was cancelled may not have left yet
                self._free -= 1
                self._held[run_id] += 1
                turn.set_result(None)

    def _leave(self, run_id: str, turn: _Turn) -> None:
        turns = self._waiting.get(run_id, deque())
        with contextlib.suppress(ValueError):  # it was passed over already
            turns.remove(turn)
        if not turns:
            self._waiting.pop(run_id, None)
