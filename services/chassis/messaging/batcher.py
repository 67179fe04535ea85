"""Coalesce concurrent requests: those that arrive during a call are sent together in the next one.

Every caller gets its own answer or error, whatever becomes of the call and of the task that makes
it.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from banyan.errors import BanyanError, TemporaryError

T = TypeVar("T")
R = TypeVar("R")
_MOST_RESTS = 5


class Batcher(Generic[T, R]):
    """Sends items in batches.

    `send` gets up to `most` items and returns for each, in order, a value or an error. The queue is
    bounded by the number of callers, since each waits for its own answer.

    rest_s: rest before the first of several calls, repeated a few times while items arrive in it
    """

    def __init__(
        self,
        send: Callable[[Sequence[T]], Awaitable[Sequence[R | BanyanError]]],
        most: int,
        rest_s: float = 0.0,
    ) -> None:
        self._send, self._most, self._rest_s = send, most, rest_s
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def ask(self, item: T) -> R:
        """Return the answer to one item.

        Raise the item's own error, or that of the call; TemporaryError if the sender was cancelled.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._sender is None:
            self._begin()
        return await answer

    def _begin(self) -> None:
        # It outlives its first caller, whose trace is not that of the others.
        self._sender = asyncio.create_task(self._run(), context=contextvars.Context())
        self._sender.add_done_callback(self._ended)

    async def _run(self) -> None:
        if self._rest_s:
            await self._gather()
        while self._waiting:
            batch = self._waiting[: self._most]
            self._waiting = self._waiting[self._most :]
            # Callers that were cancelled meanwhile need no answer.
            batch = [(item, answer) for item, answer in batch if not answer.done()]
            if batch:
                await self._settle([item for item, _ in batch], [answer for _, answer in batch])

    async def _gather(self) -> None:
        """Rest while items arrive."""
        known = 0
        for _ in range(_MOST_RESTS):
            if not known < len(self._waiting) < self._most:
                return
            known = len(self._waiting)
            await asyncio.sleep(self._rest_s)

    async def _settle(self, items: Sequence[T], answers: "Sequence[asyncio.Future[R]]") -> None:
        try:
            outcomes = await self._send(items)
            if len(outcomes) != len(items):
                raise TemporaryError(f"{len(outcomes)} of {len(items)} items were answered")
        except Exception as error:  # of any kind: it belongs to the callers, who wait for it
            _fail(answers, error)
        else:
            for answer, outcome in zip(answers, outcomes, strict=True):
                if isinstance(outcome, BanyanError):
                    _fail([answer], outcome)
                elif not answer.done():
                    answer.set_result(outcome)
        finally:
            _fail(answers, _stopped())  # if the task is being cancelled; else all have an answer

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Begin again if items arrived at the last moment; fail all if the task was cancelled."""
        self._sender = None
        if task.cancelled() or task.exception() is not None:
            waiting, self._waiting = self._waiting, []
            _fail([answer for _, answer in waiting], _stopped())
        elif self._waiting:
            self._begin()


def _stopped() -> TemporaryError:
    return TemporaryError("this was not sent: its sender was stopped, as when the process ends")


def _fail(answers: "Sequence[asyncio.Future[R]]", error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
