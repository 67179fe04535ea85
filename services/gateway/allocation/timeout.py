"""A call that may never come back, in a thread of its own that nobody waits for at the end of the process."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, call: Callable[[], T], name: str) -> T:
    """What the call returns or raises. Raises TimeoutError where it does neither in time; the thread is left behind."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody listens any more
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    async with asyncio.timeout(seconds):
        result, error = await answer
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
