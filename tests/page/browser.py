"""Waits on a page whose policy of content lets nothing evaluate strings inside it."""

import time

from playwright.sync_api import Page

DEADLINE_S = 10.0


def until(page: Page, expression: str) -> None:
    """Wait until an expression is true. Playwright's own wait evaluates it inside the page."""
    deadline = time.monotonic() + DEADLINE_S
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"{expression} within {DEADLINE_S:g} s"
        page.wait_for_timeout(50)
