"""The wiring of a learner, once and by hand: settings, bus, store, model, server."""

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from banyan.errors import TemporaryError
from banyan.recipe import Recipe
from banyan.v1 import learner_service_pb2_grpc, runstore_service_pb2
from services.chassis import models
from services.chassis.messaging.bus import Bus
from services.chassis.process import process
from services.chassis.rpc import rpc
from services.chassis.rpc.health import Liveness
from services.learner import server
from services.learner.checkpoints import checkpoint
from services.learner.consumer import ClosedTrees
from services.learner.learner import Learner
from services.learner.loggers.logs import Logs
from services.learner.settings import LearnerSettings
from services.learner.store import GrpcStore
from services.learner.training.checkpointer import Checkpointer
from services.learner.training.distributed import launch
from services.learner.training.trainer_thread import TorchThread
from services.learner.weights.collective import HandOverServer
from services.learner.weights.folder import WeightFolder, choose_folder
from services.learner.weights.object_store import open_outlet

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Process:
    """The parts of the process that exist before the model is loaded."""

    settings: LearnerSettings
    store: GrpcStore
    bus: Bus
    trigger: ClosedTrees
    servicer: server.LearnerServicer
    grpc_server: rpc.RpcServer
    liveness: Liveness
    stop: asyncio.Event


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The run to train, and the torch thread that trains it."""

    stored: runstore_service_pb2.Run
    recipe: Recipe
    folder: Path
    torch_thread: TorchThread


async def run(settings: LearnerSettings, stop: asyncio.Event) -> None:
    """Run the learner as a service until it is stopped."""
    servicer, liveness = server.LearnerServicer(), Liveness()
    adder = learner_service_pb2_grpc.add_LearnerServiceServicer_to_server
    grpc_server = await rpc.serve(
        settings.listen,
        [lambda s: adder(servicer, s)],
        [server.SERVICE],
        secret=settings.secret,
        secret_file=settings.secret_file,
        liveness=liveness,
    )
    bus = await Bus.of(settings, "learner")
    channel = rpc.channel(settings.store, secret=settings.secret)
    try:
        parts = _Process(
            settings=settings,
            store=GrpcStore(channel, settings.run),
            bus=bus,
            trigger=ClosedTrees(),
            servicer=servicer,
            grpc_server=grpc_server,
            liveness=liveness,
            stop=stop,
        )
        await grpc_server.set_serving(False)
        await process.first_of(_train(parts), parts.trigger.listen(bus, settings.run))
    finally:
        await grpc_server.stop()
        await channel.close(None)
        await bus.close()


async def _train(parts: _Process) -> None:
    """Read the run, train it, and end its loggers, its torch thread and its weights in order."""
    stored = await parts.store.run()
    recipe = Recipe.model_validate_json(stored.recipe_json)
    default = parts.settings.state / "runs" / stored.run_id
    folder = Path(stored.folder) if stored.folder else default
    torch_thread = await asyncio.to_thread(launch.torch_thread, recipe, parts.settings)
    parts.liveness.add(torch_thread.pulse)
    run = _Run(stored=stored, recipe=recipe, folder=folder, torch_thread=torch_thread)
    with ExitStack() as after_torch:  # the torch thread may be writing weights until it has ended
        try:
            logs = Logs(stored.run_id, recipe, folder, parts.store)
            try:
                await _train_run(parts, run, logs, after_torch)
            finally:
                await logs.close()
        finally:
            torch_thread.done()


async def _train_run(parts: _Process, run: _Run, logs: Logs, after_torch: ExitStack) -> None:
    """Load the model, train the run, and serve its weights until stopped."""
    recipe, torch_thread, run_id = run.recipe, run.torch_thread, run.stored.run_id
    checkpoints = run.folder / "checkpoints"
    base = await asyncio.to_thread(models.resolve, recipe.model)
    newest = await asyncio.to_thread(checkpoint.newest, checkpoints, run_id)
    resumed_from, mark = newest if newest is not None else (None, None)
    await torch_thread.load(resumed_from or base, resumed=mark is not None, base=base)
    weights = WeightFolder(
        choose_folder(parts.settings.weights, run_id, run.folder, torch_thread.weight_bytes())
    )
    after_torch.callback(weights.clean)
    await torch_thread.reserve(weights)
    every = recipe.optimise.checkpoint_every
    checkpointer = Checkpointer(checkpoints, base, torch_thread, every)
    parts.liveness.add(checkpointer.pulse)
    async with open_outlet(recipe, parts.bus, run_id, parts.stop) as outlet:
        learner = Learner(
            run_id,
            recipe,
            held_out=frozenset(run.stored.held_out),
            store=parts.store,
            trigger=parts.trigger,
            torch_thread=torch_thread,
            weights=weights,
            checkpointer=checkpointer,
            address=parts.settings.advertise or parts.grpc_server.address,
            tick_s=parts.settings.tick_s,
            outlet=outlet,
        )
        learner.on_step, learner.on_batch = logs.step, logs.batch
        parts.servicer.learner = learner
        if recipe.resources.weights == "nccl":
            device, drain_s = torch_thread.device, recipe.resources.drain_s
            parts.servicer.hand_overs = HandOverServer(weights, device, drain_s)
        await parts.grpc_server.set_serving(True)
        await process.first_of(_work(learner, mark, parts.stop), torch_thread.watch())
    checkpointer.done()


async def _work(learner: Learner, resumed: checkpoint.Mark | None, stop: asyncio.Event) -> None:
    """Train until the run is over, then serve weights until stopped."""
    try:
        await learner.work(resumed, stop)
    except TemporaryError as error:
        if not stop.is_set():
            raise
        step = learner.at.step
        log.warning("stopped at step %d: %s; the next learner goes on from the store", step, error)
    await stop.wait()
