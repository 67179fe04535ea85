"""The children that a pool keeps, and those that it ends."""

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Scored
from services.verifier.sandbox import lane
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool, limits_of
from services.verifier.sandbox.worker import ScorerSpec, Worker

FIRST, SECOND, THIRD = (ScorerSpec(f"rewards:n{number}", {}) for number in range(3))


class Children:
    """All children that a pool has started; they score while `go` lets them.

    spent: whether a score leaves something behind.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spent: bool = False) -> None:
        self.go, self.scoring, self.ended = asyncio.Semaphore(100), 0, 0
        self.started: list[Child] = []
        self.spent = spent
        monkeypatch.setattr(Worker, "start", self._start)

    async def _start(self, *_: Any) -> "Child":
        self.started.append(Child(self))
        return self.started[-1]


class Child:
    """A child that gives each completion a one."""

    version, apart, wrong = "1", True, 0.0

    def __init__(self, family: Children) -> None:
        self._family, self.calls, self.spent = family, 0, False

    async def score(self, request: Any) -> dict[str, Any]:
        self.calls += 1
        self._family.scoring += 1
        await self._family.go.acquire()
        self.spent = self._family.spent
        return {"value": 1.0, "parts": {}}

    async def close(self) -> None:
        self._family.ended += 1


async def outcome(pool: Pool, spec: ScorerSpec = FIRST) -> Any:
    return (await asyncio.wait_for(pool.score(spec, "x", {}), 5.0)).outcome


async def test_the_scorer_that_was_used_longest_ago_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children, pool = Children(monkeypatch), Pool(Limits(), lanes=2)
    for spec in (FIRST, SECOND, FIRST, THIRD):
        await outcome(pool, spec)
    assert list(pool._lanes) == [FIRST.key, THIRD.key]
    await pool.close()
    assert children.ended == len(children.started) == 3


async def test_a_child_that_scores_while_its_pool_is_closed_ends_with_its_score(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    children, pool = Children(monkeypatch), Pool(Limits())
    children.go = asyncio.Semaphore(0)
    score = asyncio.create_task(outcome(pool))
    await eventually(lambda: children.scoring == 1, 5.0)
    await asyncio.wait_for(pool.close(), 5.0)
    assert not children.ended
    children.go.release()
    assert await score == Scored(1.0)
    await eventually(lambda: children.ended == 1, 5.0, "the child's end")


@pytest.mark.parametrize(("spent", "most"), [(False, 3), (True, 1)])
async def test_a_child_is_replaced_after_so_many_scores_or_once_it_is_spent(
    monkeypatch: pytest.MonkeyPatch, eventually: Any, spent: bool, most: int
) -> None:
    monkeypatch.setattr(lane, "_MAX_CALLS", 3)
    children, pool = Children(monkeypatch, spent), Pool(Limits())
    for _ in range(2 * most):
        await outcome(pool)
    assert [child.calls for child in children.started] == [most] * 2
    await eventually(lambda: children.ended == 2, 5.0, "the end of both")


def test_only_a_users_function_may_start_processes_or_use_the_network() -> None:
    limits = Limits(processes=8, network=True)
    asks = replace(FIRST, network=True)
    assert limits_of(asks, limits) == limits
    assert limits_of(FIRST, limits) == replace(limits, network=False)
    with pytest.raises(InvalidInput, match="BANYAN_SANDBOX_NETWORK=1"):
        limits_of(asks, replace(limits, network=False))
    named = limits_of(ScorerSpec("number", {}), limits)
    assert (named.processes, named.network) == (0, False)


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (None, 2)])
async def test_scores_at_once_are_as_many_as_the_recipe_says(
    monkeypatch: pytest.MonkeyPatch, eventually: Any, concurrency: int | None, most: int
) -> None:
    children, pool = Children(monkeypatch), Pool(Limits(), width=2)
    children.go = asyncio.Semaphore(0)
    spec = ScorerSpec("rewards:any", {}, concurrency=concurrency)
    scores = [asyncio.create_task(outcome(pool, spec)) for _ in range(9)]
    await eventually(lambda: children.scoring == most, 5.0)
    for _ in range(20):  # those that wait had their turn of the loop
        await asyncio.sleep(0)
    assert children.scoring == len(children.started) == most
    for _ in scores:
        children.go.release()
    assert await asyncio.gather(*scores) == [Scored(1.0)] * 9
    await pool.close()


async def test_the_child_that_says_the_version_gives_the_first_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children, pool = Children(monkeypatch), Pool(Limits())
    assert await pool.version(FIRST) == "1"
    await outcome(pool)
    assert [child.calls for child in children.started] == [1]
    await pool.close()
    assert children.ended == 1


SAYS: dict[str, Any] = {
    "name": "rewards:other",
    "settings": {"a": 1},
    "withheld": ("rows.jsonl",),
    "deadline_s": 1.5,
    "memory_mb": 64,
    "concurrency": 3,
    "secrets": ("KEY",),
    "readable": ("/data",),
    "python": "/bin/python",
    "external": ("send",),
}


@pytest.mark.parametrize("name", [one.name for one in fields(ScorerSpec)])
def test_scorers_that_differ_in_anything_share_no_child(name: str) -> None:
    """Else one run's function would read the files that another one's recipe withholds."""
    assert replace(FIRST, **{name: SAYS.get(name, True)}).key != FIRST.key
