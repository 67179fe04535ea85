"""Work that begins together leaves the loop its turns."""

import asyncio
import contextlib
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Scored
from banyan.v1 import treestore_service_pb2 as ts
from services.verifier.breath import MOST, Breath
from services.verifier.handlers import LeafHandler
from services.verifier.sandbox.lane import Verdict
from services.verifier.sandbox.worker import ScorerSpec


async def test_pieces_of_work_that_begin_together_are_done_in_order_in_several_turns() -> None:
    breath, order, count = Breath(), list[int](), 10 * MOST

    async def piece(number: int) -> None:
        await breath.take()
        order.append(number)

    async def other() -> None:
        while len(order) - order.count(-1) < count:
            order.append(-1)
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await asyncio.wait_for(asyncio.gather(*map(piece, range(count))), 5)
    await beside
    assert [number for number in order if number >= 0] == list(range(count))
    longest = max(len(list(run)) for is_turn, run in groupby(order, lambda n: n < 0) if not is_turn)
    assert longest <= MOST


async def test_a_large_piece_of_work_has_a_turn_for_itself() -> None:
    breath, turns = Breath(), list[list[str]]()

    async def piece(name: str, pieces: int) -> None:
        await breath.take(pieces)
        turns[-1].append(name)

    async def beside() -> None:
        while sum(map(len, turns)) < 5:
            turns.append([])
            await asyncio.sleep(0)

    works = [piece("a", 1), piece("b", 10 * MOST), piece("c", 1), piece("d", MOST), piece("e", 1)]
    await asyncio.wait_for(asyncio.gather(beside(), *works), 5)
    assert [turn for turn in turns if turn] == [["a"], ["b"], ["c"], ["d"], ["e"]]


async def test_those_who_leave_take_no_turn_and_it_ends_when_nobody_waits() -> None:
    breath = Breath()
    tasks = [asyncio.create_task(breath.take()) for _ in range(4 * MOST)]
    await asyncio.sleep(0)
    for task in tasks[MOST:-1]:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)
    await asyncio.wait_for(tasks[-1], 5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not breath._is_turning
    await asyncio.wait_for(breath.take(), 5)


@pytest.mark.parametrize("is_refused", [False, True])
async def test_leaves_that_waited_for_one_read_of_their_scorers_begin_in_several_turns(
    is_refused: bool,
) -> None:
    read, order, count = asyncio.Event(), list[str](), 4 * MOST

    async def scorers(_run: str) -> dict[str, ScorerSpec]:
        await read.wait()
        if is_refused:
            raise InvalidInput("no recipe")
        return {"number": ScorerSpec("number", {})}

    async def score(*_: Any, **__: Any) -> Verdict:
        return Verdict("1", Scored(1.0))

    async def publish(*_: Any) -> None:
        order.append("scored")

    handler: Any = LeafHandler(
        *(SimpleNamespace(scorers=scorers), SimpleNamespace(publish=publish)),
        *(SimpleNamespace(score=score), "v"),  # type: ignore[arg-type]
    )
    leaf = ts.LeafTranscript(run_id="r", scorers=["number"], row_json="{}")
    leaves = [asyncio.create_task(handler.score(leaf)) for _ in range(count)]
    for _ in range(count):
        await asyncio.sleep(0)  # all of them wait
    read.set()
    while order.count("scored") < count:
        order.append("turn")
        await asyncio.sleep(0)
    await asyncio.gather(*leaves)
    runs = [len(list(run)) for name, run in groupby(order) if name == "scored"]
    assert max(runs) <= MOST and sum(runs) == count
