"""Runs, one run, its trees, and comparison, in a browser."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page import documents as docs
from tests.page.fake import TOKEN, Fake
from tests.page.state import LIVE, RUN

pytestmark = pytest.mark.slow
Open = Callable[..., Page]
LAST_REWARD = f"{[*docs.steps(40, len(RUN))][-1]['reward']:.3f}"


def test_runs_show_state_steps_and_reward(view: Open, shot: Callable[..., None]) -> None:
    page = view("/")
    row = page.get_by_role("row").filter(has_text=RUN)
    expect(row).to_contain_text("succeeded")
    expect(row).to_contain_text("40 / 40")
    expect(row.locator(".reward .figure")).to_have_text(LAST_REWARD)
    shot(page, "runs")


def test_runs_show_their_pace_and_what_is_wrong_with_them(view: Open, fake: Fake) -> None:
    fake.gateway.silent.add(LIVE)
    page = view("/runs")
    row = page.get_by_role("row").filter(has_text=RUN)
    expect(row).to_contain_text("7.3 s a step")
    expect(page.get_by_role("row").filter(has_text=LIVE)).to_contain_text("last step")
    other = page.get_by_role("row").filter(has_text="second-55667788")
    expect(other).to_contain_text("1 min 23 s a step")
    expect(other.locator(".badge")).to_have_count(0)
    badge = row.get_by_role("link", name="Doctor's warning: Reward fell from 0.86 to 0.41")
    expect(badge).to_have_text("dead-groups +2")
    asked = [path for path in fake.gateway.requests if path.endswith("/health")]
    page.wait_for_timeout(7000)  # the list is read twice
    again = [path for path in fake.gateway.requests if path.endswith("/health")]
    assert len(again) - len(asked) <= 1 and len(set(again)) == 4
    badge.click()
    expect(page.get_by_text("Reward fell from 0.86 to 0.41 at step 23.")).to_be_in_viewport()


def test_chosen_runs_are_compared_on_one_chart(view: Open, shot: Callable[..., None]) -> None:
    page = view("/runs")
    button = page.get_by_role("button", name="Compare")
    expect(button).to_be_disabled()
    page.get_by_label(f"Choose {RUN}").check()
    page.get_by_label("Choose second-55667788").check()
    button.click()
    expect(page.locator(".readout .value")).to_have_count(2)
    page.get_by_label("Metric").select_option("entropy")
    expect(page.locator(".readout")).to_contain_text(RUN)
    assert "metric=entropy" in page.url
    shot(page, "compare")
    page.reload()
    expect(page.get_by_label("Metric")).to_have_value("entropy")


def test_a_run_shows_curves_doctor_trees_members_and_recipe(
    view: Open, shot: Callable[..., None]
) -> None:
    page = view(f"/runs/{RUN}", height=1600)
    expect(page.locator(".chart canvas")).to_have_count(6)
    figures = page.locator(".figures")
    expect(figures).to_contain_text("87.8 % to 98.9 %")
    occupancy = figures.locator("div").filter(has_text="Engine occupancy").locator("dd")
    expect(occupancy.first).to_have_text(re.compile(r"^\d\d\.\d %$"))
    expect(page.locator(".finding")).to_contain_text("Reward fell")
    expect(page.locator("p.facts")).to_have_text(
        "The trees share 86 % of their tokens, 4,560 of 5,284 a step."
    )
    expect(page.get_by_role("link", name="Trees of step 23")).to_be_visible()
    expect(page.get_by_role("region", name="Newest trees").locator("tbody tr")).to_have_count(8)
    expect(page.get_by_role("region", name="Members")).to_contain_text("rollout-0")
    page.get_by_text("Configuration, as resolved").click()
    expect(page.locator("details pre")).to_contain_text("learning_rate: 0.0003")
    page.get_by_label("Metric").select_option("score/number")
    expect(page.locator(".chart").last).to_contain_text(LAST_REWARD.rstrip("0"))
    shot(page, "run")


def test_a_held_out_result_says_its_step_and_what_it_measures(view: Open, fake: Fake) -> None:
    page = view(f"/runs/{LIVE}")
    tile = page.locator(".figures div").filter(has_text="Held-out accuracy")
    expect(tile).to_contain_text("46.0 %")
    expect(tile).to_contain_text("of step 0")
    fake.gateway.graded.add(LIVE)
    page.reload()
    tile = page.locator(".figures div").filter(has_text="Held-out reward")
    expect(tile).to_contain_text("0.625")
    expect(tile).not_to_contain_text("%")
    chart = page.locator(".chart").filter(has=page.get_by_role("heading", name="Held-out reward"))
    expect(chart.locator(".readout")).to_have_text("step 00.625")
    expect(page.get_by_text("Held-out accuracy")).to_have_count(0)
    page.goto(f"{fake.address}/compare?runs={LIVE},{RUN}")
    expect(page.get_by_role("columnheader", name="Held-out result")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text=LIVE)).to_contain_text(
        "0.625mean rewardof step 0"
    )


def test_nodes_of_a_run_that_is_over_have_left_and_raise_no_alarm(view: Open) -> None:
    page = view(f"/runs/{RUN}")
    members = page.get_by_role("region", name="Members")
    expect(members).to_contain_text("left")
    expect(members.locator("tr.bad")).to_have_count(0)
    expect(page.locator(".figures")).to_contain_text("node took part")


def test_an_evaluation_under_way_tells_how_many_rows_it_has(view: Open, fake: Fake) -> None:
    fake.gateway.under_way = [{"label": "before-greedy", "rows": 215, "done": 45, "n": 45}]
    page = view(f"/runs/{LIVE}")
    expect(page.locator(".progress")).to_contain_text("45 of 215 held-out rows evaluated")
    expect(page.get_by_role("region", name="Members").locator("tr.bad")).to_have_count(0)


def test_a_dip_leads_to_its_trees_in_two_clicks(view: Open) -> None:
    page = view(f"/runs/{RUN}")
    plot = page.get_by_role("slider", name="Reward by step")
    expect(plot.locator("canvas")).to_be_visible()
    place = plot.locator(".u-over").bounding_box()
    assert place
    page.mouse.move(place["x"] + place["width"] * 22 / 39, place["y"] + 60)
    expect(page.locator(".readout").first).to_contain_text("step 23")
    page.mouse.down()
    page.mouse.up()
    expect(page).to_have_url(f"{page.url.split('/runs')[0]}/runs/{RUN}/trees?step=23")
    expect(page.get_by_label("Trained in step")).to_have_value("23")
    policy = page.locator(".space .vrow").first.get_by_role("cell").nth(2)
    expect(policy).to_have_text("22")
    for older in ("21", "20"):  # the same step trained on trees of staler policies, too
        page.get_by_label("Policy step").fill(older)
        expect(policy).to_have_text(older)
    page.get_by_label("Policy step").fill("19")
    expect(page.get_by_text("No tree fits these filters")).to_be_visible()
    page.get_by_label("Policy step").fill("")
    expect(policy).to_have_text("22")
    page.locator(".space .vrow a").first.click()
    expect(page.locator(".card.prompt")).to_be_visible()


def test_a_curve_is_walked_by_keys(view: Open) -> None:
    page = view(f"/runs/{RUN}")
    plot = page.get_by_role("slider", name="Reward by step")
    expect(plot.locator("canvas")).to_be_visible()
    plot.focus()
    for key in ("End", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    expect(plot).to_have_attribute("aria-valuenow", "38")
    assert "step 38, reward" in (plot.get_attribute("aria-valuetext") or "")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Trained in step")).to_have_value("38")


def test_a_live_run_goes_on_by_itself(view: Open, fake: Fake, shot: Callable[..., None]) -> None:
    page = view(f"/runs/{LIVE}", scheme="dark", height=1200)
    expect(page.locator(".progress")).to_contain_text("Step 12 of 40, about 3 min 16 s left")
    fake.gateway.step()
    expect(page.locator(".progress")).to_contain_text("Step 13 of 40")
    expect(page.locator(".readout").first).to_contain_text("step 13")
    fake.gateway.steps[LIVE] += 5  # steps that no event told of
    fake.gateway.change()
    expect(page.locator(".readout").first).to_contain_text("step 18")
    plot = page.get_by_role("slider", name="Reward by step")
    plot.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(plot).to_have_attribute("aria-valuenow", "17")
    shot(page, "run-live")


def test_actions_ask_and_need_the_token(view: Open, fake: Fake) -> None:
    page = view(f"/runs/{LIVE}")
    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("can be resumed")
    dialog.get_by_role("button", name="Leave it").click()
    expect(dialog).to_have_count(0)
    assert fake.gateway.actions == []
    page.get_by_role("button", name="Pause").click()
    dialog.get_by_role("button", name="Pause").click()
    page.get_by_role("textbox", name="Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("not the one of this state folder")
    page.get_by_role("textbox", name="Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator(".outcome")).to_have_text("Pause: done.")
    assert fake.gateway.actions == [("POST", f"/api/runs/{LIVE}/cancel", {"pause": True})]
    expect(page.locator(".head .state-word").first).to_have_text("paused")
    assert page.evaluate("sessionStorage.getItem('banyan-token')") == TOKEN
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".outcome")).to_have_text("Cancel: done.")


def test_a_token_in_the_address_is_taken_once(view: Open) -> None:
    page = view("/runs#token=abc%20def")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert "#" not in page.url and "token" not in page.url
    assert page.evaluate("sessionStorage.getItem('banyan-token')") == "abc def"
    assert page.evaluate("localStorage.length") == 0


def test_a_hundred_thousand_trees_scroll_in_few_elements(view: Open, fake: Fake) -> None:
    page = view(f"/runs/{RUN}/trees")
    expect(page.locator(".space .vrow").first).to_be_visible()
    most = 0
    for _ in range(30):
        page.locator(".scroller").evaluate("e => { e.scrollTop = e.scrollHeight; }")
        page.wait_for_timeout(60)
        most = max(most, page.evaluate("document.querySelectorAll('*').length"))
    assert most <= 1500
    pages = [path for path in fake.gateway.requests if "/trees?" in path]
    assert len(pages) > 10 and len(set(pages)) == len(pages)
    assert page.locator(".space").evaluate("e => e.offsetHeight") > 1000 * 48


def test_filters_are_in_the_address(view: Open, shot: Callable[..., None]) -> None:
    page = view(f"/runs/{RUN}/trees")
    page.get_by_label("State").select_option("DROPPED")
    expect(page.locator(".space .vrow").first).to_contain_text("dropped STALE")
    page.get_by_label("Row").fill("2")
    expect(page.get_by_text("64 hex digits")).to_be_visible()
    page.get_by_label("Row").fill(f"{2:064x}")
    expect(page).to_have_url(
        f"{page.url.split('/runs')[0]}/runs/{RUN}/trees?state=DROPPED&row={2:064x}"
    )
    expect(page.locator(".space .vrow").first).to_contain_text("00000000")
    shot(page, "trees")
    page.reload()
    expect(page.get_by_label("State")).to_have_value("DROPPED")
    page.get_by_label("Row").fill("9" * 64)
    expect(page.locator(".state")).to_contain_text("No tree fits these filters")


def test_rows_of_the_list_are_walked_by_keys(view: Open) -> None:
    page = view(f"/runs/{RUN}/trees")
    page.locator(".space .vrow a").first.focus()
    for _ in range(40):
        page.keyboard.press("ArrowDown")
    row = page.locator(".vrow:has(a:focus)")
    expect(row).to_have_attribute("data-index", "40")
    expect(row).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator(".card.prompt")).to_be_visible()
