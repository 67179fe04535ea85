"""A browser, a fake gateway, and a page that must not err, ask elsewhere, or open a dialog."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.page.fake import Fake

CHROMIUM = "/usr/bin/chromium"
SHOTS = "BANYAN_PAGE_SHOTS"
# Counts streams that are open; the page itself has no need to know.
COUNTED = """
window.openStreams = 0; window.madeStreams = 0;
const Real = EventSource;
window.EventSource = class extends Real {
  constructor(...all) {
    super(...all);
    this.live = true;
    window.openStreams += 1;
    window.madeStreams += 1;
  }
  close() { if (this.live) { this.live = false; window.openStreams -= 1; } super.close(); }
};
"""

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Debian's chromium: Playwright downloads none.

    Until it ends, Playwright's event loop counts as running in this thread, so tests that are
    coroutines cannot run: it ends with each file.
    """
    assert Path(CHROMIUM).exists(), f"{CHROMIUM} is missing: run tests/setup.sh slow"
    # As root chromium needs --no-sandbox; everything that it loads here is ours.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=flags)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """Serve the page and documents."""
    served = Fake()
    yield served
    served.close()


@pytest.fixture
def view(browser: Browser, fake: Fake) -> Iterator[Open]:
    """Open paths of the page; at the end nothing may have gone wrong in any of them."""
    faults: list[str] = []
    contexts: list[BrowserContext] = []

    def open_page(path: str, width: int = 1280, height: int = 800, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            permissions=["clipboard-read", "clipboard-write"],
        )
        contexts.append(context)
        context.add_init_script(COUNTED)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: foreign(request.url))
        page.on("console", lambda said: refused(said.text))
        page.goto(fake.address + path)
        return page

    def foreign(url: str) -> None:
        if not url.startswith((fake.address, "data:")):
            faults.append(f"request to {url}")

    def refused(text: str) -> None:
        if "Content Security Policy" in text or "Uncaught" in text:
            faults.append(text)

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def shot(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Keep a picture where the folder of BANYAN_PAGE_SHOTS is given."""

    def keep(page: Page, name: str) -> None:
        if folder := os.environ.get(SHOTS):
            page.wait_for_timeout(400)
            page.screenshot(path=str(Path(folder) / f"{name}.png"))

    return keep
