"""Threads that do blocking calls for a loop."""

import asyncio
import subprocess
import sys
import threading

import pytest

from services.verifier.jail.threads import Threads

_LEFT_AT_WORK = """
import asyncio, time
from services.verifier.jail.threads import Threads

async def main():
    threads = Threads(1, "left")
    threads.run(lambda: (time.sleep(0.2), print("done", flush=True)))

asyncio.run(main())
"""


async def test_calls_return_what_they_return_in_the_order_of_asking() -> None:
    threads, seen = Threads(1, "one"), list[int]()

    def call(number: int, *, twice: bool) -> int:
        seen.append(number)
        return number * (1 + twice)

    answers = await asyncio.gather(*(threads.run(call, n, twice=True) for n in range(50)))
    threads.close()
    assert answers == [2 * n for n in range(50)] and seen == list(range(50))


async def test_as_many_calls_at_once_as_threads() -> None:
    threads, both = Threads(2, "two"), threading.Barrier(2, timeout=20)
    await asyncio.gather(*(threads.run(both.wait) for _ in range(6)))
    threads.close()


async def test_what_a_call_raises_comes_out() -> None:
    threads = Threads(1, "one")
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    assert await threads.run(divmod, 7, 2) == (3, 1)
    threads.close()


async def test_a_cancelled_call_leaves_the_thread_to_the_next() -> None:
    threads, go = Threads(1, "one"), threading.Event()
    first = threads.run(go.wait, 20)
    first.cancel()
    go.set()
    assert await threads.run(str, 5) == "5" and first.cancelled()
    threads.close()


async def test_close_waits_for_calls_that_were_asked_for() -> None:
    threads, go, seen = Threads(1, "one"), threading.Event(), list[bool]()
    answer = threads.run(lambda: seen.append(go.wait(20)))
    closing = asyncio.create_task(asyncio.to_thread(threads.close))
    go.set()
    await closing
    await answer
    assert seen == [True]


def test_a_process_ends_behind_the_calls_of_threads_that_were_never_closed() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LEFT_AT_WORK], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


async def test_a_call_that_was_cancelled_says_nothing_more() -> None:
    threads, said = Threads(1, "one"), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    for call in (threads.run(str, 5), threads.run(divmod, 1, 0)):
        call.cancel()
    assert await threads.run(str, 6) == "6" and not said
    threads.close()
