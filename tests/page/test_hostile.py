"""Texts of models, tools and nodes stay texts, whatever they hold."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page.documents import HOSTILE as TEXTS
from tests.page.fake import Fake
from tests.page.state import HOSTILE

pytestmark = pytest.mark.slow
Open = Callable[..., Page]
KINDS = {
    "Prompt": lambda one: one["kind"] == "CONTEXT",
    "Tool call": lambda one: one["kind"] == "POLICY" and one["finish"] == "TOOL_CALL",
    "Tool's answer": lambda one: one["kind"] == "TOOL",
    "Sampled by the policy": lambda one: one["leaf"] is not None,
}
PLANTED = "img[src='x'], svg[onload], a[href^='javascript'], main script, iframe, object"


def nothing_came_of_it(page: Page) -> None:
    assert page.locator(PLANTED).count() == 0
    assert page.evaluate("document.scripts.length") == 1
    hidden = page.evaluate(
        r"/[\u0000-\u0008\u202a-\u202e\u2066-\u2069\u200b\ufeff]/.test(document.body.innerText)"
    )
    assert not hidden, "a character that hides or reorders text is written out"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 360])
def test_in_a_tree(view: Open, fake: Fake, shot: Callable[..., None], width: int) -> None:
    page = view("/trees/hostile", width=width)
    expect(page.locator(".panel")).to_contain_text(TEXTS[0])
    expect(page.locator(".panel")).to_contain_text("⟨202E⟩txt.exe")
    nothing_came_of_it(page)
    page.get_by_role("button", name="Open all subtrees").click()
    nothing_came_of_it(page)
    shot(page, f"hostile-tree-{width}")
    nodes = fake.gateway.trees["hostile"]["nodes"]
    for title, fits in KINDS.items():
        segment = next(one["segment"] for one in nodes if fits(one))
        page.goto(f"{fake.address}/trees/hostile?segment={segment}")
        expect(page.locator(".panel h2").first).to_have_text(title)
        expect(page.locator(".panel .heat")).to_be_visible()
        nothing_came_of_it(page)
    expect(page.locator(".score")).to_contain_text(TEXTS[0])


@pytest.mark.parametrize("path", ["/runs", f"/runs/{HOSTILE}", "/system", f"/runs/{HOSTILE}/trees"])
@pytest.mark.parametrize("width", [1280, 360])
def test_in_other_views(view: Open, path: str, width: int) -> None:
    page = view(path, width=width)
    page.wait_for_timeout(800)
    if path != f"/runs/{HOSTILE}/trees":
        assert "<img src=x onerror=alert(1)>" in page.locator("main").inner_text()
    if path == f"/runs/{HOSTILE}":
        expect(page.locator(".finding")).to_contain_text(TEXTS[0])
        expect(page.locator(".finding code")).to_have_text("javascript:alert(9)")
        expect(page.locator(".finding a")).to_have_count(1)
        page.get_by_text("Configuration, as resolved").click()
    nothing_came_of_it(page)
