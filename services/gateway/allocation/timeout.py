"""A call with a timeout, in a daemon thread that the end of the process does not wait for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, call: Callable[[], T], name: str) -> T:
    """Return the call's result or raise its error. Raise TimeoutError if neither comes in time.

    The thread is then left behind.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # raised again in the caller's task
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    async with asyncio.timeout(seconds):
        result, error = await answer
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
