"""The page over a real gateway, with a real run whose trees call tools, in a browser."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect

from tests.faults import tool_load
from tests.faults.harness import System, system
from tests.page.conftest import CHROMIUM, SHOTS

pytestmark = pytest.mark.slow
SEEN_S = 3.0  # a killed service is shown as such within this


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        opened = await browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(20_000)
        faults: list[str] = []
        opened.on("pageerror", lambda error: faults.append(str(error)))
        yield opened
        await browser.close()
        assert faults == []


async def test_a_user_finds_from_a_curve_to_a_tools_answer_and_its_batch(
    page: Page, tmp_path: Path
) -> None:
    async with system(tmp_path / "s") as made:
        await made.create(tool_load.tool_load(tmp_path, tool_load.CALCULATOR, steps=200))
        await made.reach(3)
        address = f"http://{made.supervisor.fleet.state.address('page')}"
        await page.goto(f"{address}/runs")
        await page.get_by_role("row").filter(has_text=made.run_id).get_by_role("link").click()
        await a_run_goes_on(page)
        await from_its_trees_to_a_batch(page)
        await a_killed_service_is_told(page, made, address)


async def a_run_goes_on(page: Page) -> None:
    """See curves with points, and a step that comes by itself."""
    await expect(page.locator(".chart canvas").first).to_be_visible()
    step = page.get_by_text("Step ").first
    before = await step.inner_text()
    await expect(step).not_to_have_text(before)


async def from_its_trees_to_a_batch(page: Page) -> None:
    """Go to a tree that was trained on, to a tool's answer in it, and to what used it."""
    await page.get_by_role("link", name="All trees").click()
    await page.get_by_label("State").select_option("CONSUMED")
    await page.locator(".space .vrow").filter(has_text="consumed").first.locator("a").first.click()
    await page.locator(".card.answer").first.locator(".text").click()
    panel = page.locator(".panel")
    await expect(panel.locator("h2").first).to_have_text("Tool's answer")
    await expect(panel).to_contain_text("calculator")
    await expect(panel).to_contain_text("Batch")
    await expect(panel).to_contain_text("banyan lineage")
    await shot(page, "real-tree")


async def a_killed_service_is_told(page: Page, made: System, address: str) -> None:
    await page.goto(f"{address}/system")
    processes = page.get_by_role("region", name="Processes").locator("tbody tr")
    await expect(processes.filter(has_text="verifier")).to_be_visible()
    await made.kill("verifier")
    begun = time.monotonic()
    await expect(page.get_by_role("alert")).to_contain_text("verifier")
    assert time.monotonic() - begun < SEEN_S
    await shot(page, "real-system")


async def shot(page: Page, name: str) -> None:
    """Keep a picture where the folder of BANYAN_PAGE_SHOTS is given."""
    if folder := os.environ.get(SHOTS):
        await page.screenshot(path=str(Path(folder) / f"{name}.png"))
