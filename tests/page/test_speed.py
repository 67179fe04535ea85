"""Times and sizes in a browser. They compare times, so nothing runs beside them."""

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.page.browser import until
from tests.page.fake import Fake
from tests.page.state import LIVE

pytestmark = pytest.mark.alone
Open = Callable[..., Page]
MOST_LAYOUT_MS = 200
MOST_TASK_MS = 50
MOST_ELEMENTS = 1500
MOST_HEAP_BYTES = 5_000_000
TRACED = ["devtools.timeline", "disabled-by-default-devtools.timeline", "toplevel", "__metadata"]
FIRST = """
window.firstRow = 0;
new MutationObserver((_, watch) => {
  if (!document.querySelector('tbody tr')) return;
  watch.disconnect();
  requestAnimationFrame(() => { window.firstRow = performance.now(); });
}).observe(document, { childList: true, subtree: true });
"""


def heap(page: Page, session: CDPSession) -> int:
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def elements(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


def test_the_first_row_is_there_within_a_second(browser: Browser, fake: Fake) -> None:
    context = browser.new_context()
    context.add_init_script(FIRST)
    page = context.new_page()
    page.goto(fake.address + "/runs")
    until(page, "window.firstRow > 0")
    first = page.evaluate("firstRow")
    print(f"first row after {first:.0f} ms")
    context.close()
    assert first < 1000


def tasks(browser: Browser) -> list[tuple[float, float]]:
    """Return the main thread's tasks since tracing began: processor and wall time in ms.

    On a busy machine the wall time of a task is mostly that of others.
    """
    events = json.loads(browser.stop_tracing())["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"].get("name") == "CrRendererMain"
    }
    found = [
        (event["tdur"] / 1000, event["dur"] / 1000)
        for event in events
        if event["name"] == "RunTask" and (event["pid"], event["tid"]) in main and "tdur" in event
    ]
    assert len(found) > 100, "the trace holds the main thread's tasks"
    return sorted(found, reverse=True)


def test_a_thousand_leaves_are_laid_out_and_scroll_smoothly(
    browser: Browser, fake: Fake, view: Open
) -> None:
    page = view("/runs")
    browser.start_tracing(page=page, categories=TRACED)
    page.goto(fake.address + "/trees/large")
    expect(page.locator(".card").first).to_be_visible()
    page.locator(".stage").focus()
    page.keyboard.press("e")
    page.wait_for_timeout(500)
    layout = page.evaluate("performance.getEntriesByName('tree-layout')[0].duration")
    page.locator(".stage").hover()
    most = 0
    for turn in range(120):
        page.mouse.wheel(60 if turn % 30 < 5 else -60 if turn % 30 < 10 else 0, 400)
        page.wait_for_timeout(16)
        if turn % 10 == 0:
            most = max(most, elements(page))
    for key in ("-", "-", "-", "-", "0", "+", "+", "+"):
        page.keyboard.press(key)
        page.wait_for_timeout(60)
        most = max(most, elements(page))
    longest = tasks(browser)[:3]
    print(f"layout {layout:.1f} ms, elements {most}, tasks {longest}")
    assert layout < MOST_LAYOUT_MS
    assert most <= MOST_ELEMENTS
    assert longest[0][0] <= MOST_TASK_MS


def test_a_long_stream_leaves_heap_elements_and_streams_as_they_were(
    view: Open, fake: Fake
) -> None:
    page = view(f"/runs/{LIVE}")
    expect(page.locator(".progress")).to_contain_text("Step 12")
    session = page.context.new_cdp_session(page)
    for _ in range(20):
        fake.gateway.step()
        page.wait_for_timeout(30)
    page.wait_for_timeout(800)
    before, count = heap(page, session), elements(page)
    for _ in range(200):
        fake.gateway.step()
        page.wait_for_timeout(30)
    expect(page.locator(".progress")).to_contain_text("Step 232")
    page.wait_for_timeout(800)
    after = heap(page, session)
    print(f"heap {before} to {after}, elements {count} to {elements(page)}")
    assert after - before <= MOST_HEAP_BYTES
    assert abs(elements(page) - count) <= 20
    assert page.evaluate("[openStreams, madeStreams]") == [1, 1]


def test_a_tree_that_changes_for_long_leaves_no_traces(view: Open, fake: Fake) -> None:
    page = view("/trees/growing")
    expect(page.locator(".card").first).to_be_visible()
    session = page.context.new_cdp_session(page)

    def changes(many: int) -> None:
        for _ in range(many):
            old = fake.gateway.trees["growing"]
            fake.gateway.trees["growing"] = old | {"revision": old["revision"] + 1}
            fake.gateway.change()
            page.wait_for_timeout(15)
        page.wait_for_timeout(500)

    changes(20)
    before, count = heap(page, session), elements(page)
    changes(200)
    after = heap(page, session)
    print(f"heap {before} to {after}")
    assert after - before <= MOST_HEAP_BYTES and elements(page) == count
