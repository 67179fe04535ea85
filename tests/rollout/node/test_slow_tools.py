"""Tools that take their time: their trees are kept, and hold nothing of the engine meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.observed import observed
from banyan.environments.receipts import Receipt
from banyan.errors import DeadlineMissed
from banyan.segment import Kind
from banyan.wire.generate_spec import EnvironmentSpec
from methods.environment.calculator import Calculator
from services.rollout.growth.segments import ToolAnswer
from services.rollout.node import acting, lease_renewal
from tests.rollout.growth.test_actions import CHAIN
from tests.rollout.world import RUN, World, world

MARKS = {"begin": "=", "end": "?"}
CALCULATOR = Calculator(**MARKS)
ENVIRONMENT = EnvironmentSpec(name="calculator", settings=MARKS, turns=2)
KEY = receipts.key_of("")


def answer(tree_id: bytes, action: bytes, call: str) -> ToolAnswer:
    """Return what a verifier says, with its proof."""
    said = CALCULATOR.step(b"", call)
    seen = observed(CALCULATOR, MARKS, action, b"", said)
    seen = replace(seen, shown=blake(said.text.encode()))
    return ToolAnswer(Receipt(seen, receipts.mac(KEY, RUN, tree_id, seen), call), said.text)


@pytest_asyncio.fixture
async def small(nats_server: Any, tmp_path: Path) -> AsyncIterator[World]:
    short = {"claim_ms": 600, "requeue_ms": 200}
    async with world(nats_server.url, tmp_path / "state", **short) as made:
        yield made


class Held:
    """A verifier that answers nothing before it was asked for so many first actions at once."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.asked = wanted, set[bytes]()
        self.all = asyncio.Event()

    async def act(
        self, tree_id: bytes, epoch: int, action: bytes, *, call: str, deadline_s: float
    ) -> ToolAnswer:
        self.asked.add(action)
        if len(self.asked) >= self.wanted:
            self.all.set()
        await self.all.wait()
        return answer(tree_id, action, call)


async def test_branches_that_wait_hold_no_slot_of_the_engine(small: World) -> None:
    """An engine of two branches, and 24 that wait at once."""
    await small.begin(engine_settings={"chain": CHAIN}, max_branches=2)
    await small.policy(0)
    verifier = Held(wanted=6 * 4)
    async with small.node(environments=verifier):
        trees = await small.open(6, max_new_tokens=40, environment=ENVIRONMENT)
        grown = await small.grown(trees)
    assert len(verifier.asked) > 24 and {len(tree.leaves) for tree in grown} == {4}


class Slow:
    """A verifier whose tool takes `takes_s`; a caller's patience ends long before."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s, self.asked = takes_s, 0
        self.began: dict[bytes, float] = {}

    async def act(
        self, tree_id: bytes, epoch: int, action: bytes, *, call: str, deadline_s: float
    ) -> ToolAnswer:
        self.asked += 1
        now = time.monotonic()
        left_s = self.began.setdefault(action, now) + self.takes_s - now
        if left_s > deadline_s:
            await asyncio.sleep(deadline_s)
            raise DeadlineMissed("the verifier gave no answer in time")
        await asyncio.sleep(max(0.0, left_s))
        return answer(tree_id, action, call)


async def test_a_tool_that_outlasts_every_deadline_loses_no_claim(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool of 150 s in small: claim, renewal, progress and patience are all far shorter."""
    monkeypatch.setattr(acting, "_ASK_S", 0.2)
    monkeypatch.setattr(acting, "_PAUSE_S", 0.01)
    monkeypatch.setattr(acting, "_LONGEST_PAUSE_S", 0.16)
    monkeypatch.setattr(lease_renewal, "EVERY_S", 0.2)
    await small.begin(engine_settings={"chain": CHAIN})
    await small.policy(0)
    verifier = Slow(takes_s=3.0)
    async with small.node(environments=verifier, segment_deadline_s=0.8):
        (opened,) = await small.open(
            1, {"width": 1}, max_new_tokens=40, environment=replace(ENVIRONMENT, turns=1)
        )
        (tree,) = await small.grown([opened])
    assert verifier.asked > 5 and tree.claim_epoch == 1
    assert [segment.kind for segment in tree.segments].count(Kind.TOOL) == 1
