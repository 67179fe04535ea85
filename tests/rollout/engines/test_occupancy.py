"""Metric of how many segments are decoded together."""

import asyncio
from typing import Any

import pytest

from services.chassis.process import telemetry
from services.rollout.engines import occupancy
from services.rollout.engines.occupancy import Occupancy
from services.rollout.engines.port import EngineStats
from services.rollout.engines.thread import EngineThread
from tests.rollout.conftest import ask
from tests.rollout.engines.test_scripted import prompt
from tests.rollout.growing import ENDLESS, engine


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []

    def observe(name: str, value: float, **_: Any) -> None:
        found.append((name, value))

    monkeypatch.setattr(telemetry, "observe", observe)
    return found


def test_it_is_the_mean_over_the_steps_of_a_second(seen: list[tuple[str, float]]) -> None:
    now = 100.0
    metric = Occupancy(lambda: now)
    for after_s, steps, sampled in ((0.5, 4, 32), (0.5, 10, 60), (0.9, 11, 61), (0.1, 20, 85)):
        now += after_s
        metric.look(lambda: EngineStats(steps=steps, sampled_tokens=sampled))  # noqa: B023
    assert seen == [("banyan.engine.occupancy", 6.0), ("banyan.engine.occupancy", 2.5)]
    now += 60.0  # without a step: nothing is observed
    metric.look(lambda: EngineStats(steps=20, sampled_tokens=85))
    assert len(seen) == 2


async def test_an_engine_that_decodes_three_segments_says_three(
    seen: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occupancy, "EVERY_S", 0.0)
    thread = EngineThread(lambda: engine(ENDLESS))
    await thread.start()
    try:
        asked = [ask(i, prompt("go"), i, max_new_tokens=8) for i in range(3)]
        await asyncio.wrap_future(thread.submit(asked))
        assert len(await asyncio.wait_for(thread.batches(), 5)) == 3
    finally:
        await thread.stop()
    values = [value for name, value in seen if name == "banyan.engine.occupancy"]
    assert max(values) == 3.0 and len(values) >= 7
