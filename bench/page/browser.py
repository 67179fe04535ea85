"""A browser for benches, and its pages."""

import contextlib
import os
from collections.abc import AsyncIterator

from playwright.async_api import Browser, Page, async_playwright

from tests.page.conftest import CHROMIUM, COUNTED


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Yield Debian's chromium."""
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # as root chromium needs it
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield browser
        finally:
            await browser.close()


async def opened(browser: Browser, address: str) -> Page:
    """Open an address in a context of its own; the page counts its streams as `openStreams`."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    await context.add_init_script(COUNTED)
    page = await context.new_page()
    await page.goto(address)
    return page
