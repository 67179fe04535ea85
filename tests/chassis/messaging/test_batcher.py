"""Coalesced requests: one call, an answer for each caller, and no caller waits in vain."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from banyan.errors import BanyanError, NotFound, TemporaryError
from services.chassis.messaging.batcher import Batcher


class Other:
    """The other side: it answers with ten times the number once it may."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.open = asyncio.Event()
        self.error: BaseException | None = None

    async def send(self, items: Sequence[int]) -> list[int | BanyanError]:
        self.calls.append(list(items))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return [10 * item if item else NotFound("there is no 0") for item in items]


async def asked(together: Batcher[int, int], *items: int) -> list[asyncio.Task[int]]:
    """Start callers and return them once they wait."""
    tasks = [asyncio.create_task(together.ask(item)) for item in items]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def ends(tasks: Sequence[asyncio.Task[int]]) -> list[Any]:
    async with asyncio.timeout(5):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_is_asked_for_together_is_one_call_of_bounded_size() -> None:
    other = Other()
    other.open.set()
    together = Batcher(other.send, 64)
    assert await ends(await asked(together, *range(1, 101))) == [10 * n for n in range(1, 101)]
    assert [len(call) for call in other.calls] == [64, 36]
    assert await together.ask(7) == 70  # and those who come when it is quiet


async def test_what_comes_during_a_call_goes_together_in_the_next() -> None:
    other = Other()
    together = Batcher(other.send, 64)
    first = await asked(together, 1)
    second = await asked(together, 2) + await asked(together, 3) + await asked(together, 4)
    assert other.calls == [[1]]
    other.open.set()
    assert await ends(first + second) == [10, 20, 30, 40]
    assert other.calls == [[1], [2, 3, 4]]


async def test_what_comes_during_a_rest_goes_with_the_first() -> None:
    other = Other()
    other.open.set()
    together = Batcher(other.send, 64, rest_s=0.2)
    tasks = await asked(together, 1)
    await asyncio.sleep(0.05)
    tasks += await asked(together, 2, 3)
    assert await ends(tasks) == [10, 20, 30] and other.calls == [[1, 2, 3]]


async def test_a_rest_ends_though_items_go_on_to_arrive() -> None:
    other = Other()
    other.open.set()
    together = Batcher(other.send, 10_000, rest_s=0.01)
    tasks: list[asyncio.Task[int]] = []
    async with asyncio.timeout(10):
        while not other.calls:
            tasks += await asked(together, 1)
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)


async def test_each_has_its_own_error() -> None:
    other = Other()
    other.open.set()
    first, wrong, last = await ends(await asked(Batcher(other.send, 64), 1, 0, 2))
    assert (first, last) == (10, 20) and isinstance(wrong, NotFound)


@pytest.mark.parametrize("error", [TemporaryError("away"), ValueError("a mistake in the program")])
async def test_an_error_of_the_call_is_said_to_everyone(error: Exception) -> None:
    other = Other()
    together = Batcher(other.send, 2)
    tasks = await asked(together, 1, 2) + await asked(together, 3, 4, 5)
    other.error = error
    other.open.set()
    assert await ends(tasks) == [error] * 5
    assert other.calls == [[1, 2], [3, 4], [5]]
    other.error = None
    assert await together.ask(6) == 60  # and the next is asked for all the same


async def test_an_answer_that_lacks_some_is_no_answer() -> None:
    async def short(items: Sequence[int]) -> list[int | BanyanError]:
        return list(items[1:])

    for error in await ends(await asked(Batcher(short, 64), 1, 2)):
        assert isinstance(error, TemporaryError) and "1 of 2" in str(error)


async def test_an_asker_that_is_cancelled_takes_no_call_along() -> None:
    other = Other()
    together = Batcher(other.send, 2)
    gone, stays = await asked(together, 1, 2)
    gone_too, stays_too = await asked(together, 3, 4)
    gone.cancel()
    gone_too.cancel()
    other.open.set()
    found = await ends([gone, stays, gone_too, stays_too])
    assert [isinstance(end, asyncio.CancelledError) for end in found] == [True, False, True, False]
    assert (found[1], found[3]) == (20, 40)
    assert other.calls == [[1, 2], [4]]  # who left before its call is not asked for


@pytest.mark.parametrize("runs", [True, False])
async def test_a_sender_that_is_cancelled_leaves_nobody_waiting(runs: bool) -> None:
    other = Other()
    together = Batcher(other.send, 2)
    tasks = [asyncio.create_task(together.ask(item)) for item in (1, 2, 3)]
    while together._sender is None or (runs and not other.calls):
        await asyncio.sleep(0)
    together._sender.cancel()  # in its call, or before its first step
    for error in await ends(tasks):
        assert isinstance(error, TemporaryError) and "was not sent" in str(error)
    assert other.calls == ([[1, 2]] if runs else [])
    other.open.set()
    assert await together.ask(6) == 60
