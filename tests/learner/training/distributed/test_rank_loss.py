"""A rank that dies, hangs or fails ends the group within its deadline, and the error names it."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.learner.data.prepare import Lesson
from services.learner.training.distributed import split
from services.learner.training.distributed.rank_loss import RankLost
from services.learner.training.distributed.thread import RankThread
from tests.learner.training.distributed.conftest import Pair, met, part, pieces_of, recipe

DEADLINE_S = 3.0


@pytest.fixture
def fresh() -> Iterator[Pair]:
    ranks = met(DEADLINE_S)
    try:
        yield ranks
    finally:
        ranks.workers.ranks[1].kill()
        part(ranks)


@pytest.mark.slow
async def test_a_rank_killed_between_commands(fresh: Pair) -> None:
    watching = asyncio.create_task(RankThread(recipe(), 1, fresh.commands, fresh.workers).watch())
    await asyncio.sleep(0)
    os.kill(fresh.workers.ranks[1].pid, signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 1 of this learner ended by SIGKILL"):
        await asyncio.wait_for(watching, 10)


@pytest.mark.slow
async def test_a_rank_that_hangs_between_commands(fresh: Pair) -> None:
    # Without workers, as under torchrun.
    watching = asyncio.create_task(fresh.thread(recipe()).watch())
    os.kill(fresh.workers.ranks[1].pid, signal.SIGSTOP)
    with pytest.raises(RankLost, match=r"rank 1 gave no sign of life for [3-9] s"):
        await asyncio.wait_for(watching, 15)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_rank_lost_in_a_step(
    fresh: Pair, tiny_folder: Path, forest: Any, how: signal.Signals
) -> None:
    thread = fresh.thread(recipe())
    await thread.load(tiny_folder, resumed=False, base=tiny_folder)
    rows = thread.pack(pieces_of(forest, 0), 60)
    os.kill(fresh.workers.ranks[1].pid, how)
    with pytest.raises(RankLost, match=r"rank 0 at .*: rank 1 gives no sign of life"):
        await asyncio.wait_for(thread.step(Lesson(rows, []), 0), DEADLINE_S + 20)


@pytest.mark.slow
async def test_a_rank_lost_at_the_canary(fresh: Pair, tiny_folder: Path) -> None:
    thread = fresh.thread(recipe(engine="vllm"))
    await thread.load(tiny_folder, resumed=False, base=tiny_folder)
    canary = await thread.run(thread._canary)
    assert canary is not None and len(canary["logprobs"]) == len(canary["tokens"]) - 1
    os.kill(fresh.workers.ranks[1].pid, signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 0 at the canary: rank 1 gives no sign of life"):
        await asyncio.wait_for(thread.run(thread._canary), DEADLINE_S + 20)


async def test_a_rank_that_fails_is_named_with_its_cause(
    fresh: Pair, tiny_folder: Path, forest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = fresh.thread(recipe())
    await thread.load(tiny_folder, resumed=False, base=tiny_folder)
    rows = thread.pack(pieces_of(forest, 0), 60)
    plain = split.of_rank

    def broken(sequences: Any, rank: int, ranks: int) -> Any:
        return plain(sequences, rank, ranks) if rank == 0 else ["no sequence"] * 99

    monkeypatch.setattr(split, "of_rank", broken)
    with pytest.raises(
        RankLost, match="rank 1 failed: AttributeError: 'str' object has no attribute"
    ):
        await asyncio.wait_for(thread.step(Lesson(rows, []), 0), DEADLINE_S + 20)
