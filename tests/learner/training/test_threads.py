"""The threads of a step: as many as the launcher grants at that time."""

import asyncio
from pathlib import Path
from typing import Any

import torch

from banyan.recipe_loader.load import resolve
from services.chassis.process import cores
from services.chassis.process.cores import CoreShare
from services.learner.data.prepare import Lesson
from services.learner.training.trainer_thread import TorchThread


class Counting:
    """A trainer whose metrics are the threads that it was called with."""

    def step(self, rows: Any, step: int, sizes: Any, silent: Any) -> float:
        return torch.get_num_threads()


async def test_a_step_has_the_threads_that_were_granted_before_it(tmp_path: Path) -> None:
    before, file = torch.get_num_threads(), tmp_path / "threads" / "learner-r-0"
    recipe = resolve({"name": "x", "model": str(tmp_path), "task": {"name": "arithmetic"}})
    thread = TorchThread(recipe, 1, CoreShare(file, 1))
    thread._trainer = Counting()  # type: ignore[assignment]
    try:
        await thread.run(lambda: torch.set_num_threads(1))
        threads_used = [(await thread.step(Lesson([], []), 1)).report]
        for threads in (2, 1):
            cores.write(file, threads)
            threads_used.append((await thread.step(Lesson([], []), 1)).report)
    finally:
        await asyncio.to_thread(thread.done)
        torch.set_num_threads(before)
    assert threads_used == [1, 2, 1]
