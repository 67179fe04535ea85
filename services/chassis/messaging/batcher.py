"""What is asked for while a call is under way goes out together in the next: a thousand askers cost a dozen calls.

Every asker gets its own answer or error, whatever becomes of the call, and of the task that makes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from banyan.errors import BanyanError, TemporaryError

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """`send` gets up to `most` items and answers each in turn, with a value or an error.

    What waits is bounded by who asks: each call returns with its own answer.
    """

    def __init__(
        self, send: Callable[[Sequence[T]], Awaitable[Sequence[R | BanyanError]]], most: int
    ) -> None:
        self._send, self._most = send, most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def ask(self, item: T) -> R:
        """The answer to one item. Raises its own error, or that of the call; TemporaryError if the sender was cancelled."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._sender is None:
            self._begin()
        return await answer

    def _begin(self) -> None:
        self._sender = asyncio.create_task(self._run())
        self._sender.add_done_callback(self._ended)

    async def _run(self) -> None:
        while self._waiting:
            part, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            part = [
                (item, answer) for item, answer in part if not answer.done()
            ]  # the others' askers are gone
            if part:
                await self._settle([item for item, _ in part], [answer for _, answer in part])

    async def _settle(self, items: Sequence[T], answers: "Sequence[asyncio.Future[R]]") -> None:
        try:
            found = await self._send(items)
            if len(found) != len(items):
                raise TemporaryError(f"{len(found)} of {len(items)} items were answered")
        except Exception as error:
            _fail(answers, error)
        except BaseException:
            _fail(answers, _ending())
            raise
        else:
            for answer, outcome in zip(answers, found, strict=True):
                if isinstance(outcome, BanyanError):
                    _fail([answer], outcome)
                elif not answer.done():
                    answer.set_result(outcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Also where a task was cancelled before it ran, or something came after its last look."""
        self._sender = None
        if task.cancelled() or task.exception() is not None:
            left, self._waiting = self._waiting, []
            _fail([answer for _, answer in left], _ending())
        elif self._waiting:
            self._begin()


def _ending() -> TemporaryError:
    return TemporaryError("this was not sent: its sender was stopped, as when the process ends")


def _fail(answers: "Sequence[asyncio.Future[R]]", error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
