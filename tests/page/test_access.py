"""Every view by the rules of axe-core, in both themes and on a phone; and without a mouse."""

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.state import LIVE, RUN

pytestmark = pytest.mark.slow
Open = Callable[..., Page]
VIEWS = {
    "runs": "/runs",
    "run": f"/runs/{LIVE}",
    "trees": f"/runs/{RUN}/trees",
    "tree": "/trees/small?segment=" + f"{3:064x}",
    "two": "/trees/large?with=small&colour=advantage",
    "compare": f"/compare?runs={RUN},second-55667788",
    "system": "/system",
    "missing": "/nowhere",
    "failed": "/trees/0x",
}


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_nothing_serious(
    view: Open, shot: Callable[..., None], name: str, look: str
) -> None:
    phone = look == "phone"
    size = {"width": 360, "height": 740} if phone else {"width": 1280, "height": 800}
    page = view(VIEWS[name], scheme="dark" if look == "dark" else "light", **size)
    page.wait_for_timeout(900)
    shot(page, f"{name}-{look}")
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert [
        (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0].get("failureSummary"))
        for one in serious
    ] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_everything_is_reached_by_tab_and_seen(view: Open) -> None:
    page = view("/trees/small")
    expect(page.locator(".card").first).to_be_visible()
    page.wait_for_timeout(500)
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """() => {
                  const e = document.activeElement;
                  const outline = getComputedStyle(e).outlineStyle;
                  if (e === document.body) return ['', 'none'];
                  const name = e.getAttribute('aria-label') || e.textContent.trim();
                  return [name.slice(0, 24), outline];
                }"""
            )
        )
    names = [name for name, _ in reached]
    assert names[0] == "Skip to the content"
    for wanted in ("Dark colours", "Colour by", "Zoom in", "Open all subtrees", "Keys"):
        assert wanted in names
    assert any(str(name).startswith("Tree of 12 leaves") for name in names)
    assert [name for name, outline in reached if name and outline == "none"] == []
