"""Breaths of the event loop between short pieces of work.

Many leaves that begin together would be scored in one go, each in no time; until the last of them
nothing else would happen.
"""

import asyncio
from collections import deque

MOST = 16  # pieces of work that begin in one turn of the loop, of a millisecond each at most


class Breath:
    """Lets `MOST` pieces of work begin in a turn of the event loop, in order."""

    def __init__(self) -> None:
        self._left = MOST
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._is_turning = False

    async def take(self, pieces: int = 1) -> None:
        """Return at once, or in a later turn of the loop.

        pieces: of the work that begins; as many as a turn has, if it is more
        """
        pieces, loop = min(pieces, MOST), asyncio.get_running_loop()
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._turn)
        if pieces <= self._left and not self._waiting:
            self._left -= pieces
            return
        turn = loop.create_future()
        self._waiting.append((turn, pieces))
        await turn

    def _turn(self) -> None:
        """Begin a turn: let those go on that have waited longest."""
        used = self._left < MOST
        self._left = MOST
        while self._waiting and self._waiting[0][1] <= self._left:
            turn, pieces = self._waiting.popleft()
            if not turn.done():  # else its piece of work was cancelled
                turn.set_result(None)
                self._left -= pieces
        self._is_turning = used or self._left < MOST
        if self._is_turning:
            asyncio.get_running_loop().call_soon(self._turn)
