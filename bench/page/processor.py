"""Processor time of the services while none, one and four browsers show a live run.

They are opened in turns within one run of the scripted engine. Processor time depends little on
what else the machine does, the browsers themselves included, which are no part of it.
"""

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser

from banyan.recipe import Recipe
from banyan.recipe_loader.load import load
from banyan.v1 import gateway_service_pb2 as gw
from bench.harness.compared import RECIPE
from bench.harness.processor import of_services
from bench.harness.table import Result, median
from bench.overhead import Started, run_of
from bench.page.browser import chromium, opened
from services.chassis.rpc import rpc
from tests.faults.harness import tiny_model

TOKEN_S = 0.14  # of the scripted engine, as long as the arithmetic recipe's
BROWSERS = (0, 1, 4)
ROUNDS, WINDOW_S, SETTLE_S, WARM = 4, 24.0, 4.0, 5
SERVING = ("gateway", "treestore")  # the services that work for the page
_RUN_S = 900.0


@dataclass(frozen=True)
class Stretch:
    """A stretch of a run with so many browsers open.

    serving: processor seconds a step, of the services that serve the page
    whole: the same of all services
    """

    serving: float
    whole: float


async def measure(result: Result) -> None:
    """Measure each number of browsers in turn, in several rounds."""
    found: dict[int, list[Stretch]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        recipe = _recipe(Path(folder))
        async with asyncio.timeout(_RUN_S), run_of(recipe) as started, chromium() as browser:
            await started.policy(WARM)
            for number in range(ROUNDS):
                turn = number % len(BROWSERS)
                for count in (*BROWSERS[turn:], *BROWSERS[:turn]):  # none is always first
                    found[count].append(await _watched(started, browser, count))
    _add(result, found)


def _recipe(folder: Path) -> Recipe:
    settings = f"resources.engine_settings={{latency_s: {TOKEN_S}, accuracy: 0.5}}"
    short = ["eval.samples=0", "eval.max_rows=2", "budget.steps=5000"]
    return load(
        RECIPE, [*short, f"model={tiny_model(folder)}", "resources.engine=scripted", settings]
    )


async def _watched(started: Started, browser: Browser, count: int) -> Stretch:
    """Read what the services spend while so many browsers show the run."""
    address = f"http://{started.supervisor.fleet.state.address('page')}/runs/{started.run_id}"
    pages = [await opened(browser, address) for _ in range(count)]
    await asyncio.sleep(SETTLE_S)
    step, before, begun = await _step(started), of_services(started.supervisor), time.monotonic()
    await asyncio.sleep(WINDOW_S)
    after, seconds = of_services(started.supervisor), time.monotonic() - begun
    steps = await _step(started) - step
    streams = [await page.evaluate("openStreams") for page in pages]
    if streams != [1] * count:
        raise RuntimeError(f"{count} pages have {streams} open streams, not one each")
    for page in pages:
        await page.context.close()
    if steps < 1:
        raise RuntimeError(f"run {started.run_id} takes no steps: {step} after {seconds:.0f} s")
    spent = {name: (after[name].whole - before[name].whole) / steps for name in before}
    shown = ", ".join(f"{name} {1000 * share:.0f}" for name, share in spent.items())
    print(f"  {count} browsers: {steps} steps in {seconds:.0f} s; ms a step: {shown}", flush=True)
    return Stretch(sum(spent[name] for name in SERVING), sum(spent.values()))


async def _step(started: Started) -> int:
    """Return the newest step of the run."""
    request = gw.GetRunRequest(run_id=started.run_id)
    return int((await rpc.call(started.gateway.GetRun, request, 20.0, 20.0)).run.step)


def _add(result: Result, found: Mapping[int, Sequence[Stretch]]) -> None:
    whole = median([stretch.whole for stretch in found[0]])
    result.add("no browser: processor time of the run, a step", whole, "s")
    for count in BROWSERS[1:]:
        pairs = zip(found[count], found[0], strict=True)  # of one round: a step costs more later
        added = median([watched.serving - alone.serving for watched, alone in pairs])
        words = f"{count} {'browser' if count == 1 else 'browsers'}: gateway and store add"
        result.add(f"{words}, a step", added, "s", "bar: at most 0.010")
        result.add(f"{words}, share of the run's", 100 * added / whole, "%", "bar: at most 2")
    result.notes.append(
        f"{ROUNDS} stretches of {WINDOW_S:g} s of each number of browsers, within one run of the"
        " scripted engine"
    )
