"""The tree in a browser: its shapes, the keyboard, folding, growth, details, and two trees."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page.browser import until
from tests.page.fake import Fake

pytestmark = pytest.mark.slow
Open = Callable[..., Page]


def said(page: Page) -> str:
    return page.locator("#said").text_content() or ""


def stage(page: Page) -> None:
    page.locator(".card").first.wait_for()
    page.locator(".stage").first.focus()


def test_nodes_have_shapes_words_and_rewards(view: Open, shot: Callable[..., None]) -> None:
    page = view("/trees/large")
    expect(page.locator(".card.prompt")).to_contain_text("4 + 8 + 7")
    expect(page.locator(".card.call").first).to_contain_text("<tool>")
    expect(page.locator(".card.answer").first).to_contain_text("14")
    expect(page.locator(".card.folded .meta", has_text="leaves").first).to_be_visible()
    expect(page.locator(".card .meta", has_text="Forked where").first).to_be_visible()
    expect(page.locator(".caption")).to_contain_text("1,000 leaves")
    shot(page, "tree-1000-leaves")
    small = view("/trees/small")
    expect(small.locator(".card .end.leaf")).to_have_count(12)
    expect(small.locator(".legend")).to_contain_text("Value")
    shot(small, "tree")


@pytest.mark.parametrize(
    ("measure", "low", "high"),
    [
        ("advantage", "−0.67", "+0.67"),
        ("entropy", "0.", "1."),
        ("policy_step", "step 6", "step 7"),
    ],
)
def test_colours_follow_the_measure_and_the_address(
    view: Open, measure: str, low: str, high: str
) -> None:
    page = view("/trees/small")
    before = page.locator(".card .bar").nth(2).evaluate("e => e.style.background")
    page.get_by_label("Colour by").select_option(measure)
    figures = page.locator(".legend .figure")
    expect(figures.first).to_contain_text(low)
    expect(figures.last).to_contain_text(high)
    assert page.locator(".card .bar").nth(2).evaluate("e => e.style.background") != before
    assert f"colour={measure}" in page.url
    page.reload()
    expect(page.locator(".legend .figure").first).to_contain_text(low)


def test_arrows_walk_the_tree_and_each_step_is_announced(view: Open) -> None:
    page = view("/trees/small")
    stage(page)
    assert "Prompt: 4 + 8 + 7" in said(page)
    page.keyboard.press("ArrowRight")
    assert "value" in said(page)
    active = page.locator(".stage").get_attribute("aria-activedescendant")
    chosen = page.locator(".card.chosen")
    expect(chosen).to_have_attribute("id", str(active))
    expect(chosen).to_have_attribute("aria-level", "2")
    text = chosen.locator(".text").text_content()
    page.keyboard.press("ArrowDown")
    assert page.locator(".card.chosen").get_attribute("aria-level") == "2"
    page.keyboard.press("ArrowUp")
    expect(chosen.locator(".text")).to_have_text(str(text))
    page.keyboard.press("Space")
    expect(chosen).to_have_attribute("aria-expanded", "false")
    assert "Folded" in said(page)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".card.chosen")).to_have_attribute("aria-level", "3")
    page.keyboard.press("Home")
    expect(page.locator(".card.chosen")).to_have_attribute("aria-level", "1")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("to the neighbour of the same depth")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_enter_opens_details_and_escape_goes_back(view: Open, shot: Callable[..., None]) -> None:
    page = view("/trees/small")
    stage(page)
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    panel = page.get_by_role("complementary", name="Details")
    expect(panel).to_be_focused()
    expect(panel.locator(".heat")).to_be_visible()
    shot(page, "tree-segment")
    assert "segment=" in page.url
    page.keyboard.press("Escape")
    expect(page.locator(".stage")).to_be_focused()
    expect(panel).to_contain_text("This tree")
    assert "segment=" not in page.url


def test_a_segment_shows_tokens_scores_lineage_trace_and_commands(view: Open) -> None:
    page = view("/trees/small")
    page.locator(".card:has(.leaf)").first.locator(".text").click()
    panel = page.locator(".panel")
    heat = panel.locator(".heat")
    expect(heat).to_be_visible()
    assert heat.evaluate("e => e.childNodes.length") == 1
    assert page.evaluate("[...CSS.highlights.keys()].some((name) => name.startsWith('heat-'))")
    heat.focus()
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".token-line")).to_contain_text("log-prob")
    assert "entropy" in said(page)
    box = heat.bounding_box()
    assert box
    page.mouse.move(box["x"] + 30, box["y"] + 18)
    expect(panel.locator(".token-line")).to_contain_text("“")
    expect(panel.locator(".score")).to_contain_text("number")
    expect(panel.locator(".score")).to_contain_text("format")
    run = page.url.split("/trees")[0] + "/runs/quickstart-982fd965"
    batch, step = (panel.get_by_role("link", name=name, exact=True) for name in ("11", "8"))
    expect(batch).to_have_attribute("href", f"{run}/trees?step=8")
    expect(step).to_have_attribute("href", f"{run}?step=8")
    panel.get_by_role("button", name="Copy 4bf92f").click()
    assert page.evaluate("navigator.clipboard.readText()") == "4bf92f3577b34da6a3ce929d0e0e4736"
    expect(panel).to_contain_text("banyan lineage")


def test_a_link_to_a_segment_shows_it_again(view: Open) -> None:
    page = view("/trees/large")
    page.locator(".card.answer").first.locator(".text").click()
    expect(page.locator(".panel h2").first).to_have_text("Tool's answer")
    expect(page.locator(".panel")).to_contain_text("calculator")
    page.reload()
    expect(page.locator(".panel h2").first).to_have_text("Tool's answer")
    expect(page.locator(".card.chosen.answer")).to_be_in_viewport()
    phone = view(page.url.removeprefix(page.url.split("/trees")[0]), width=360)
    expect(phone.locator(".card.chosen.answer")).to_be_in_viewport(ratio=0.9)


def test_a_wide_fan_is_shown_in_parts(view: Open) -> None:
    page = view("/trees/wide")
    more = page.locator(".card.more")
    stage(page)
    page.keyboard.press("End")
    expect(more.first).to_contain_text("more")
    text = more.first.locator(".text").text_content() or ""
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    expect(page.locator(".card.more .text").first).not_to_have_text(text)


def test_a_tree_grows_and_what_was_there_stays(
    view: Open, fake: Fake, shot: Callable[..., None]
) -> None:
    page = view("/trees/growing", scheme="dark")
    page.locator(".card.policy .text").nth(2).click()
    chosen = page.locator(".card.chosen")
    page.wait_for_timeout(400)
    place = chosen.bounding_box()
    order = page.locator(".card .text").all_text_contents()
    for _ in range(4):
        fake.gateway.grow(2)
        page.wait_for_timeout(300)
    expect(page.locator(".caption")).to_contain_text("12 leaves")
    page.wait_for_timeout(500)
    now = chosen.bounding_box()
    assert place and now
    assert abs(place["x"] - now["x"]) < 1 and abs(place["y"] - now["y"]) < 1
    page.keyboard.press("0")
    expect(page.locator(".card.fresh")).to_have_count(8)
    rows = page.locator(".card .text").evaluate_all(
        "texts => texts.map(text => [text.getBoundingClientRect().top, text.textContent])"
        ".sort((a, b) => a[0] - b[0]).map(([, text]) => text)"
    )
    leaves = [text for text in order if text in rows and not text.startswith("4 + 8")]
    assert [text for text in rows if text in leaves] == leaves
    assert "new segment" in said(page)
    shot(page, "tree-growing")


def test_a_tree_without_a_segment_grows_its_first(view: Open, fake: Fake) -> None:
    whole = fake.gateway.trees["growing"]
    fake.gateway.trees["growing"] = whole | {"nodes": [], "revision": 0, "reward_mean": None}
    page = view("/trees/growing")
    expect(page.get_by_text("Nothing is sampled yet")).to_be_visible()
    fake.gateway.trees["growing"] = whole
    fake.gateway.change()
    expect(page.locator(".card.prompt")).to_be_in_viewport()
    expect(page.get_by_text("Nothing is sampled yet")).to_be_hidden()


def test_the_last_event_ends_the_growth(view: Open, fake: Fake) -> None:
    page = view("/trees/growing")
    expect(page.locator(".caption")).to_contain_text("growing")
    old = fake.gateway.trees["growing"]
    fake.gateway.trees["growing"] = old | {"state": "CLOSED", "revision": old["revision"] + 1}
    fake.gateway.change()
    expect(page.locator(".caption")).to_contain_text("closed")
    until(page, "openStreams === 0")


def test_two_trees_of_a_row_stand_side_by_side(view: Open, shot: Callable[..., None]) -> None:
    page = view("/trees/small", width=1600)
    others = page.get_by_label("Compare with another tree of this row")
    expect(others).to_be_enabled()
    words = others.locator("option").all_text_contents()
    assert [word.split(" ·")[0] for word in words[1:]] == ["step 2", "step 39"]
    others.select_option("second")
    expect(page.locator(".stage")).to_have_count(2)
    expect(page.locator(".caption").last).to_contain_text("14 leaves")
    page.get_by_label("Colour by").select_option("advantage")
    ends = page.locator(".legend .figure").all_text_contents()
    page.locator(".stage").last.locator(".card .text").first.click()
    assert page.locator(".legend .figure").all_text_contents() == ends, "one scale for both"
    page.get_by_label("Colour by").select_option("value")
    shot(page, "tree-two")
    page.reload()
    expect(page.locator(".stage")).to_have_count(2)
    page.get_by_label("Compare with another tree of this row").select_option("")
    expect(page.locator(".stage")).to_have_count(1)


def test_zoom_and_pan_and_all_in_view(view: Open) -> None:
    page = view("/trees/large")
    stage(page)
    root = page.locator(".card.prompt")
    before = root.bounding_box()
    page.locator(".stage").hover()
    page.mouse.wheel(0, 120)
    page.wait_for_timeout(200)
    after = root.bounding_box()
    assert before and after and abs(before["y"] - after["y"] - 120) < 2
    page.keyboard.press("+")
    page.wait_for_timeout(200)
    larger = root.bounding_box()
    assert larger and larger["width"] > after["width"] * 1.2
    page.keyboard.press("e")
    page.keyboard.press("0")
    page.wait_for_timeout(600)
    assert page.locator(".card").count() <= 1, "far out, nodes are bars of the canvas"
