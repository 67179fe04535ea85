"""Memory of pages that watch a run and a tree for ten minutes.

The tests' fake gateway serves them: a step every two seconds, and a tree that changes every second.
"""

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass

from playwright.async_api import CDPSession, Page

from bench.harness.table import Result
from bench.page.browser import chromium, opened
from tests.page.fake import Fake
from tests.page.state import LIVE

MINUTES, FROM_MINUTE = 10.0, 2.0
STEP_S, CHANGE_S = 2.0, 1.0  # of the watched run, and of the watched tree
_MB = 1e6


@dataclass(frozen=True)
class Held:
    """What a page holds after a collection.

    heap: bytes of JavaScript
    elements: elements of its document
    streams: streams that are open
    """

    heap: int
    elements: int
    streams: int


async def measure(result: Result, minutes: float = MINUTES, since: float = FROM_MINUTE) -> None:
    """Watch a run and a tree. since: minute from which memory is compared."""
    fake = Fake()
    first_step = fake.gateway.steps[LIVE]
    try:
        async with chromium() as browser:
            watched: dict[str, tuple[Page, CDPSession]] = {}
            for what, path in (("run", f"/runs/{LIVE}"), ("tree", "/trees/growing")):
                page = await opened(browser, fake.address + path)
                watched[what] = (page, await page.context.new_cdp_session(page))
            changing = asyncio.create_task(_change(fake))
            found: dict[str, list[Held]] = defaultdict(list)
            begun = time.monotonic()
            for minute in (since, (since + minutes) / 2, minutes):
                await asyncio.sleep(max(0.0, begun + 60 * minute - time.monotonic()))
                for what, (page, session) in watched.items():
                    found[what].append(await _held(page, session))
                    print(f"  minute {minute:g}, {what}: {found[what][-1]}", flush=True)
            changing.cancel()
    finally:
        fake.close()
    for what, held in found.items():
        _add(result, f"a {what} from minute {since:g} to {minutes:g}", held[0], held[-1])
    steps = fake.gateway.steps[LIVE] - first_step
    result.notes.append(f"the run took {steps} steps in {minutes:g} minutes; the tree did not grow")


async def _change(fake: Fake) -> None:
    """Finish steps and change a tree as a live run does, until cancelled."""
    beat = 0
    while True:
        tree = fake.gateway.trees["growing"]
        fake.gateway.trees["growing"] = tree | {"revision": tree["revision"] + 1}
        if beat % round(STEP_S / CHANGE_S) == 0:
            fake.gateway.step()
        fake.gateway.change()
        beat += 1
        await asyncio.sleep(CHANGE_S)


async def _held(page: Page, session: CDPSession) -> Held:
    for _ in range(2):
        await session.send("HeapProfiler.collectGarbage")
    heap = (await session.send("Runtime.getHeapUsage"))["usedSize"]
    elements = await page.evaluate("document.querySelectorAll('*').length")
    return Held(int(heap), int(elements), int(await page.evaluate("openStreams")))


def _add(result: Result, words: str, first: Held, last: Held) -> None:
    result.add(f"{words}: heap at the beginning", first.heap / _MB, "MB")
    result.add(f"{words}: heap added", (last.heap - first.heap) / _MB, "MB", "bar: at most 5")
    result.add(f"{words}: elements added", last.elements - first.elements, "")
    result.add(f"{words}: streams open at the end", last.streams, "", "bar: at most 1")
