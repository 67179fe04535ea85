"""The system's view, and what the page does while the gateway is slow, wrong or away."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page import documents as docs
from tests.page.browser import until
from tests.page.fake import TOKEN, Fake
from tests.page.state import LIVE, RUN

pytestmark = pytest.mark.slow
Open = Callable[..., Page]


def test_a_killed_process_stands_out_within_three_seconds(
    view: Open, fake: Fake, shot: Callable[..., None]
) -> None:
    page = view("/system")
    expect(page.get_by_role("region", name="Processes").locator("tbody tr")).to_have_count(6)
    expect(page.get_by_role("alert")).to_be_hidden()
    fake.gateway.killed.add("rollout-1")
    begun = time.monotonic()
    expect(page.get_by_role("alert")).to_contain_text("A process is down: rollout-1")
    assert time.monotonic() - begun < 3
    first = page.get_by_role("region", name="Processes").locator("tbody tr").first
    expect(first).to_contain_text("down: dead")
    shot(page, "system")
    fake.gateway.killed.clear()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_one_that_was_started_again_at_once_stands_out_too(view: Open, fake: Fake) -> None:
    page = view("/system")
    rows = page.get_by_role("region", name="Processes").locator("tbody tr")
    expect(rows).to_have_count(6)
    fake.gateway.back.add("rollout-1")
    begun = time.monotonic()
    alarm = page.get_by_role("alert")
    expect(alarm).to_contain_text("Ended and started again: rollout-1 (killed by signal 9)")
    assert time.monotonic() - begun < 3
    expect(rows.first).to_contain_text("starting again")


def test_queues_members_and_counts(view: Open) -> None:
    page = view("/system")
    expect(page.get_by_role("region", name="Queues")).to_contain_text("12")
    expect(page.get_by_role("region", name="Members")).to_contain_text(LIVE)
    expect(page.get_by_text("700.0 MiB")).to_be_visible()


def test_a_node_that_does_not_do_what_others_do_looks_different(view: Open, fake: Fake) -> None:
    fake.gateway.more_members = [
        {"node": "stale", "policy_step": 0},
        {"node": "idle", "delivered": docs.STARTED},
        {"node": "new", "policy_step": None, "delivered": None},
    ]
    for path in ("/system", f"/runs/{LIVE}"):
        page = view(path)
        members = page.get_by_role("region", name="Members")
        row = {
            name: members.get_by_role("row").filter(has_text=name)
            for name in ("rollout-0", "stale", "idle", "new")
        }
        expect(row["rollout-0"]).to_contain_text("present")
        expect(row["stale"]).to_contain_text("12 policy steps behind")
        expect(row["idle"]).to_contain_text("idle while others deliver")
        expect(row["new"]).to_contain_text("nothing yet")
        expect(members.locator("tr.back")).to_have_count(2)


def test_a_dead_letter_is_replayed(view: Open, fake: Fake) -> None:
    page = view("/system#token=" + TOKEN.replace(" ", "%20"))
    expect(page.get_by_role("region", name="Dead letters").locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Replay letter-0").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("region", name="Dead letters").locator("tbody tr")).to_have_count(1)
    assert fake.gateway.actions == [("POST", "/api/dead/letter-0/replay", None)]


@pytest.mark.parametrize(
    ("path", "words"),
    [("/runs", "banyan train quickstart"), (f"/runs/{RUN}/trees", "as soon as a rollout node")],
)
def test_where_there_is_nothing_the_page_says_what_to_do(
    view: Open, fake: Fake, path: str, words: str
) -> None:
    fake.gateway.empty = True
    page = view(path)
    expect(page.locator(".state")).to_contain_text(words)
    fake.gateway.empty = False
    if path == "/runs":
        expect(page.get_by_role("row").filter(has_text=RUN)).to_be_visible()


@pytest.mark.parametrize(
    "path", ["/runs", f"/runs/{RUN}", f"/runs/{RUN}/trees", "/trees/small", "/system"]
)
def test_an_error_is_a_sentence_with_a_way_to_try_again(view: Open, fake: Fake, path: str) -> None:
    fake.gateway.broken["/api/"] = (
        503,
        "STORE_AWAY",
        "The treestore does not answer; it restarts.",
    )
    page = view(path)
    failed = page.locator(".state.failed").first
    expect(failed).to_contain_text("The treestore does not answer; it restarts.")
    seen = len(fake.gateway.requests)
    page.wait_for_timeout(1500)
    assert len(fake.gateway.requests) - seen < 10, "a view must not storm a gateway that errs"
    fake.gateway.broken.clear()
    retry = failed.get_by_role("button", name="Try again")
    if retry.count():
        retry.click()
    expect(page.locator(".state.failed")).to_have_count(0, timeout=6000)


def test_loading_shows_within_a_tenth_of_a_second(view: Open, fake: Fake) -> None:
    page = view("/runs")
    expect(page.get_by_role("row").filter(has_text=RUN)).to_be_visible()
    fake.gateway.delay["/api/trees/small"] = 1.0
    begun = page.evaluate(
        """() => new Promise((resolve) => {
          const start = performance.now();
          new MutationObserver((_, watch) => {
            if (document.querySelector('.state.loading')) {
              watch.disconnect();
              resolve(performance.now() - start);
            }
          }).observe(document.body, { childList: true, subtree: true });
          history.pushState(null, '', '/trees/small');
          dispatchEvent(new PopStateEvent('popstate'));
        })"""
    )
    assert begun < 100
    expect(page.locator(".card.prompt")).to_be_visible()


def test_a_lost_connection_is_told_and_comes_back(view: Open, fake: Fake) -> None:
    page = view(f"/runs/{LIVE}")
    expect(page.locator(".progress")).to_contain_text("Step 12")
    fake.gateway.broken["/events"] = (503, "AWAY", "away")
    fake.gateway.change()
    expect(page.locator(".offline")).to_have_text("Connection lost. Trying again…")
    fake.gateway.steps[LIVE] += 3
    fake.gateway.broken.clear()
    expect(page.locator(".offline")).to_have_text("", timeout=10_000)
    expect(page.locator(".progress")).to_contain_text("Step 15")
    expect(page.locator(".readout").first).to_contain_text("step 15")


def test_attempts_to_connect_become_rarer(view: Open, fake: Fake) -> None:
    fake.gateway.broken["/events"] = (503, "AWAY", "away")
    page = view(f"/runs/{LIVE}")
    until(page, "madeStreams > 0")
    page.wait_for_timeout(6000)  # tries after one second, two more and four more
    assert 2 <= page.evaluate("madeStreams") <= 4


def test_a_page_that_nobody_sees_holds_no_stream(view: Open, fake: Fake) -> None:
    page = view(f"/runs/{LIVE}")
    expect(page.locator(".progress")).to_contain_text("Step 12")
    until(page, "openStreams === 1")
    for hidden, streams in (("true", 0), ("false", 1)):
        page.evaluate(
            f"""() => {{
              const told = {{ get: () => {hidden}, configurable: true }};
              Object.defineProperty(document, "hidden", told);
              document.dispatchEvent(new Event("visibilitychange"));
            }}"""
        )
        until(page, f"openStreams === {streams}")
    fake.gateway.step()
    expect(page.locator(".progress")).to_contain_text("Step 13")


def test_reading_on_another_address_needs_the_token_once(view: Open, fake: Fake) -> None:
    fake.gateway.locked = True
    page = view(f"/runs/{LIVE}")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_have_count(1)
    page.get_by_role("textbox", name="Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator(".progress")).to_contain_text("Step 12")
    fake.gateway.step()
    expect(page.locator(".progress")).to_contain_text("Step 13")
    assert fake.gateway.sessions == 1
    page.reload()
    expect(page.locator(".progress")).to_contain_text("Step 13")
    expect(dialog).to_have_count(0)


def test_without_the_token_the_page_says_where_it_is(view: Open, fake: Fake) -> None:
    fake.gateway.locked = True
    page = view("/runs")
    page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
    failed = page.locator(".state.failed")
    expect(failed).to_contain_text("in the file “secret” of the state folder")
    page.wait_for_timeout(4000)  # the view looks again, and must not ask again
    expect(page.get_by_role("dialog")).to_have_count(0)
    failed.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("dialog")).to_have_count(1)


def test_streams_end_with_their_view(view: Open, fake: Fake) -> None:
    page = view("/runs")
    for _ in range(5):
        page.get_by_role("link", name="live", exact=True).click()
        expect(page.locator(".progress")).to_contain_text("Step 12")
        assert page.evaluate("openStreams") == 1
        page.get_by_role("navigation", name="Main").get_by_role("link", name="Runs").click()
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        assert page.evaluate("openStreams") == 0
    page.evaluate("history.pushState(null, '', '/trees/growing?with=growing')")
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    expect(page.locator(".stage")).to_have_count(2)
    until(page, "openStreams === 2")
    page.go_back()
    until(page, "openStreams === 0")
    deadline = time.monotonic() + 5
    while fake.gateway.streams and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    assert fake.gateway.streams == 0


def test_the_switch_of_colours_holds(view: Open) -> None:
    page = view("/runs", scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark colours").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_an_unknown_address_says_so(view: Open) -> None:
    page = view("/nowhere/at/all")
    expect(page.get_by_text("There is nothing at this address")).to_be_visible()
