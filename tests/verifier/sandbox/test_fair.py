"""Runs that share slots, and runs that share the children of one scorer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.plugins import Scored
from banyan.v1 import treestore_service_pb2 as ts
from services.verifier.groups import GroupHandler
from services.verifier.handlers import LeafHandler
from services.verifier.sandbox.fair_slots import FairSlots
from services.verifier.sandbox.lane import Verdict
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec, Worker

A, B = "slow-1", "fast-1"
SPEC = ScorerSpec("rewards:sleeps_if_told", {})


class Scores:
    """Scores named by run and number ("a1"), each with a slot until the test ends it."""

    def __init__(self, slots: int) -> None:
        self.slots = FairSlots(slots)
        self.served: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def wait(self, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._one(name))
            await asyncio.sleep(0)

    async def _one(self, name: str) -> None:
        async with self.slots.slot(name[0]):
            self.served.append(name)
            await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await asyncio.wait_for(self._tasks[name], 5.0)  # who was never served ends never
            await asyncio.sleep(0)  # who was served says so

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name] for name in names])

    @property
    def kept(self) -> int:
        """Number of runs of which state is kept."""
        return len(self.slots._waiting) + len(self.slots._in_use)


async def test_runs_are_served_in_turn_and_within_a_run_who_came_first() -> None:
    scores = Scores(1)
    order = ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    await scores.wait("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    for number, name in enumerate(order):
        assert scores.served == order[: number + 1]
        await scores.end(name)
    assert scores.served == order and not scores.kept


async def test_a_freed_slot_goes_to_a_run_that_holds_the_fewest() -> None:
    """A run with long scores keeps one slot of two, and does not get the other at each turn."""
    scores = Scores(2)
    await scores.wait("a1", "a2", "a3", "a4", "b1", "b2", "b3")
    await scores.end("a1", "b1", "b2", "b3")
    assert scores.served == ["a1", "a2", "b1", "b2", "b3", "a3"]
    await scores.end("a2", "a3", "a4")
    assert not scores.kept


async def test_of_runs_that_hold_as_many_the_one_that_was_served_last_waits_longest() -> None:
    """Also while neither gives a slot back."""
    scores = Scores(4)
    await scores.wait("c1", "c2", "c3", "c4", "a1", "a2", "b1", "b2")
    await scores.end("c1", "c2", "c3", "c4")
    assert scores.served[4:] == ["a1", "b1", "a2", "b2"]


async def test_no_more_slots_are_held_than_there_are_and_a_free_one_waits_for_nobody() -> None:
    scores = Scores(3)
    await scores.wait("a1", "a2", "a3", "b1")
    assert scores.served == ["a1", "a2", "a3"]
    await scores.end("a1", "a2", "a3", "b1")
    await scores.wait("a4", "a5", "a6")
    assert scores.served[-3:] == ["a4", "a5", "a6"]


async def test_a_waiter_that_is_cancelled_takes_no_slot_with_it_and_leaves_nothing() -> None:
    scores = Scores(1)
    await scores.wait("a1", "b1", "c1")
    await scores.cancel("b1")
    assert "b" not in scores.slots._waiting
    await scores.end("a1", "c1")
    assert scores.served == ["a1", "c1"] and not scores.kept


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_waiter_that_is_cancelled_as_it_is_served_gives_its_slot_on(
    cancelled_first: bool,
) -> None:
    """Both happen in one step of the loop, before the waiter runs."""
    scores = Scores(1)
    await scores.wait("a1", "b1", "c1")
    if cancelled_first:
        scores._tasks["b1"].cancel()
    scores.slots._release("a")
    if not cancelled_first:
        scores._tasks["b1"].cancel()
    await asyncio.wait([scores._tasks["b1"]])
    await asyncio.sleep(0)
    assert scores.served == ["a1", "c1"]
    assert scores.slots._in_use == {"c": 1} and not scores.slots._waiting


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_waiter_that_is_cancelled_as_it_is_served_costs_its_run_no_turn(
    cancelled_first: bool,
) -> None:
    scores = Scores(1)
    await scores.wait("a1", "b1", "b2", "c1", "a2")
    if cancelled_first:
        scores._tasks["b1"].cancel()
    scores.slots._release("a")
    if not cancelled_first:
        scores._tasks["b1"].cancel()
    await asyncio.wait([scores._tasks["b1"]])
    await asyncio.sleep(0)
    assert scores.served == ["a1", "b2"]


async def test_a_score_that_fails_gives_its_slot_back() -> None:
    slots = FairSlots(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            async with slots.slot("a"):
                raise ValueError("bad")
    assert not slots._in_use


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    made = Pool(Limits(deadline_s=1.0, memory_mb=256), width=2)
    yield made
    await made.close()


def _started(monkeypatch: pytest.MonkeyPatch, apart: bool) -> list[Worker]:
    """Return a list of all children started from here on.

    Not apart: as in a pod, where scores take turns.
    """
    start, children = Worker.start, []

    async def started(*given: Any) -> Worker:
        children.append(worker := await start(*given))
        worker.apart = apart
        return worker

    monkeypatch.setattr(Worker, "start", started)
    return children


@pytest.mark.parametrize(
    ("turns", "most"), [(False, 4), (True, 3)]
)  # of A's scores that end in two deadlines, and a bit
async def test_a_run_does_not_wait_for_the_slow_scores_of_another_with_the_same_scorer(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, turns: bool, most: int
) -> None:
    children = _started(monkeypatch, apart=not turns)
    assert (
        await asyncio.gather(*(_outcome(pool, "quick", B) for _ in range(2))) == [Scored(1.0)] * 2
    )  # children are warm
    slow = [asyncio.create_task(_outcome(pool, "sleep", A)) for _ in range(6)]
    await asyncio.sleep(0.1)
    assert await _outcome(pool, "quick", B) == Scored(1.0)
    done = [task.result().reason for task in slow if task.done()]
    assert len(done) <= most and all(reason.startswith("TIMEOUT") for reason in done)
    assert len(children) <= 4  # runs share two; second tries may need another two
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)
    (lane,) = pool._lanes.values()
    assert not lane._slots._in_use and not lane._slots._waiting and not lane.busy


class Standing:
    """A child that scores once it is told to; `begun` has all scores in order."""

    version, wrong, calls, spent = "1", 0.0, 0, False

    def __init__(self, apart: bool, begun: list[str], go: asyncio.Semaphore) -> None:
        self.apart, self._begun, self._go = apart, begun, go

    async def score(self, request: Any) -> dict[str, Any]:
        self._begun.append(request["completion"])
        await self._go.acquire()
        return {"value": 1.0, "parts": {}}

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("apart", "processes", "at_once"),
    [(False, 64, ["a1"]), (True, 64, ["a1", "a2", "b1"]), (False, 0, ["a1", "a2", "b1"])],
    ids=["counted together", "counted apart", "no processes"],
)
async def test_scores_whose_processes_are_counted_together_take_turns_across_scorers(
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
    apart: bool,
    processes: int,
    at_once: list[str],
) -> None:
    begun, go = list[str](), asyncio.Semaphore(0)

    async def start(*_: Any) -> Any:
        return Standing(apart, begun, go)

    monkeypatch.setattr(Worker, "start", start)
    pool, tasks = Pool(Limits(processes=processes), width=2), list[asyncio.Task[Any]]()
    for run_id, text, settings in ((A, "a1", {}), (A, "a2", {}), (B, "b1", {"of": "another"})):
        spec = ScorerSpec("rewards:stands", settings)
        tasks.append(asyncio.create_task(_outcome(pool, text, run_id, spec)))
        await eventually(
            lambda: len(begun) + sum(map(len, pool._turns._waiting.values())) == len(tasks)
        )
    assert begun == at_once
    for number in range(1, 4):
        await eventually(lambda number=number: len(begun) >= number)
        go.release()
    assert await asyncio.wait_for(asyncio.gather(*tasks), 10.0) == [Scored(1.0)] * 3
    assert begun == (at_once if len(at_once) > 1 else ["a1", "b1", "a2"])
    await pool.close()


async def _outcome(pool: Pool, completion: str, run_id: str, spec: ScorerSpec = SPEC) -> Any:
    return (await pool.score(spec, completion, {}, run_id=run_id)).outcome


class _Scoring:
    """A scoring that records the runs of its calls."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    async def score(
        self, spec: Any, completion: str, row: Any, *, run_id: str, turns: Any = ()
    ) -> Verdict:
        self.runs.append(run_id)
        return Verdict("1", Scored(1.0))

    async def score_group(
        self, spec: Any, completions: Any, row: Any, *, run_id: str, turns: Any, heads: Any
    ) -> list[Verdict]:
        return [await self.score(spec, text, row, run_id=run_id) for text in completions]


async def test_leaves_and_groups_are_scored_for_their_run() -> None:
    async def scorers(run_id: str) -> dict[str, ScorerSpec]:
        return {"x": SPEC}

    async def publish(*said: Any) -> None:
        pass

    scoring, leaf = _Scoring(), ts.LeafTranscript(run_id=A, scorers=["x"], row_json="{}")
    around: Any = SimpleNamespace(scorers=scorers), SimpleNamespace(publish=publish), scoring, "v"
    await LeafHandler(*around).score(leaf)
    await GroupHandler(*around)._score_with("x", {"x": SPEC}, [leaf])
    assert scoring.runs == [A, A]


async def test_a_scorer_that_is_at_work_does_not_give_way(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    begun, go = list[str](), asyncio.Semaphore(0)

    async def start(*_: Any) -> Any:
        return Standing(True, begun, go)

    monkeypatch.setattr(Worker, "start", start)
    pool, other, third = (
        Pool(Limits(), lanes=1),
        ScorerSpec("rewards:other", {}),
        ScorerSpec("rewards:third", {}),
    )
    tasks = [
        asyncio.create_task(_outcome(pool, text, A, spec))
        for text, spec in (("a1", SPEC), ("a2", other))
    ]
    await eventually(lambda: len(begun) == 2)
    assert list(pool._lanes) == [SPEC.key, other.key]  # more than there is room for
    for _ in range(3):
        go.release()
    await asyncio.wait_for(asyncio.gather(*tasks), 5.0)
    await asyncio.wait_for(_outcome(pool, "a3", A, third), 5.0)
    assert list(pool._lanes) == [third.key]
    await pool.close()


async def test_no_score_waits_for_children_of_another_scorer_to_end(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """Up to the bound: as many closing lanes as kept ones."""
    go, ended = asyncio.Semaphore(10), asyncio.Semaphore(0)

    class Stopped(Standing):
        async def close(self) -> None:
            await ended.acquire()

    async def start(*_: Any) -> Any:
        return Stopped(True, [], go)

    monkeypatch.setattr(Worker, "start", start)
    pool = Pool(Limits(), lanes=1)
    first, second, third = (ScorerSpec(f"rewards:n{n}", {}) for n in range(3))
    await _outcome(pool, "1", A, first)
    await asyncio.wait_for(_outcome(pool, "2", A, second), 5.0)
    beyond = asyncio.create_task(_outcome(pool, "3", A, third))
    await eventually(lambda: len(pool._closing) == 2)
    assert not beyond.done()
    ended.release()
    await asyncio.wait_for(beyond, 5.0)
    closing = asyncio.create_task(pool.close())
    await eventually(lambda: not pool._lanes)
    assert not closing.done()
    for _ in range(2):
        ended.release()
    await asyncio.wait_for(closing, 5.0)
