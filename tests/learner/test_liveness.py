"""The torch thread declares its tasks: a hanging one is noticed, a step pass by pass is not."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from banyan.recipe import Optimise
from banyan.runtime.ports import free_port
from services.chassis.rpc.health import Liveness
from services.learner import service
from services.learner.model.load import prepare
from services.learner.settings import LearnerSettings
from services.learner.training.trainer import Trainer, settle
from services.learner.training.trainer_thread import TorchThread
from tests.learner.in_memory_learner import recipe
from tests.learner.random_sequences import sequences_of
from tests.learner.service_world import RUN, World, world
from tests.learner.service_world import recipe as service_recipe
from tests.liveness import answers_for

__all__ = ["world"]  # a fixture


async def test_a_task_that_hangs_is_noticed_while_the_event_loop_goes_on(eventually: Any) -> None:
    thread, goes_on, liveness = TorchThread(recipe(1), 1), threading.Event(), Liveness()
    liveness.add(thread.pulse)
    try:
        await thread.run(lambda: None, "a lesson", 0.05)
        hanging = asyncio.ensure_future(thread.run(lambda: goes_on.wait(20), "a snapshot", 0.05))
        await eventually(lambda: bool(liveness.late()))
        assert "torch: a snapshot is" in liveness.late()[0]
        goes_on.set()
        assert await hanging
        assert not liveness.late()
    finally:
        goes_on.set()
        thread.done()


def test_every_pass_of_a_step_is_progress(tiny_llama: Callable[..., Any], forest: Any) -> None:
    settle(1)
    trainer, passes = Trainer(prepare(tiny_llama(0, torch.float32)), Optimise()), []
    trainer.on_pass = lambda: passes.append(1)
    rows = sequences_of(forest, 1, 16)
    trainer.step(rows, 0)
    assert len(passes) == len(rows) > 3


async def test_health_answers_for_the_torch_thread_and_for_checkpoints(
    world: World, tiny_folder: Path
) -> None:
    await world.begin(service_recipe(tiny_folder))
    address, stop = f"127.0.0.1:{free_port()}", asyncio.Event()
    settings = LearnerSettings(
        run=RUN,
        nats=world.nats,
        store=world.store,
        listen=address,
        state=world.folder,
        weights=world.folder / "w",
        threads=1,
    )
    running = asyncio.create_task(service.run(settings, stop))
    try:
        await answers_for(address, ("torch", "checkpoints"))
    finally:
        stop.set()
        await asyncio.wait_for(running, 30)
