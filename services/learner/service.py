"""Wires a learner once, by hand: settings, bus, store, model, server; runs it until it is told to stop."""

import asyncio
import logging
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
from services.learner.weights.collective import Hands
from services.learner.weights.folder import WeightFolder, choose_folder
from services.learner.weights.object_store import Outlet, handing_out

log = logging.getLogger(__name__)


async def run(settings: LearnerSettings, stop: asyncio.Event) -> None:
    """The learner as a service."""
    servicer = server.LearnerServicer()
    adder = learner_service_pb2_grpc.add_LearnerServiceServicer_to_server
    secret, liveness = settings.secret, Liveness()
    grpc_server = await rpc.serve(
        settings.listen,
        [lambda s: adder(servicer, s)],
        [server.SERVICE],
        secret=secret,
        secret_file=settings.secret_file,
        liveness=liveness,
    )
    bus = await Bus.connect(settings.nats, "learner", creds=settings.nats_creds)
    channel = rpc.channel(settings.store, secret=secret)
    try:
        store = GrpcStore(channel, settings.run)
        trigger = ClosedTrees()
        await grpc_server.set_serving(False)
        training = _train(settings, store, bus, trigger, servicer, grpc_server, liveness, stop)
        await process.first_of(training, trigger.listen(bus, settings.run))
    finally:
        await grpc_server.stop()
        await channel.close(None)
        await bus.close()


async def _train(
    settings: LearnerSettings,
    store: GrpcStore,
    bus: Bus,
    trigger: ClosedTrees,
    servicer: server.LearnerServicer,
    grpc_server: rpc.RpcServer,
    liveness: Liveness,
    stop: asyncio.Event,
) -> None:
    """Loads, trains, and serves weights until the run is over."""
    stored = await store.run()
    recipe = Recipe.model_validate_json(stored.recipe_json)
    folder = Path(stored.folder) if stored.folder else settings.state / "runs" / stored.run_id
    torch_thread = await asyncio.to_thread(launch.torch_thread, recipe, settings)
    liveness.add(torch_thread.pulse)
    logs: Logs | None = None
    weights: WeightFolder | None = None
    try:
        logs = Logs(stored.run_id, recipe, folder, store)
        base = await asyncio.to_thread(models.resolve, recipe.model)
        kept = await asyncio.to_thread(checkpoint.newest, folder / "checkpoints", stored.run_id)
        await torch_thread.load(kept[0] if kept else base, resumed=kept is not None, base=base)
        weights = WeightFolder(
            choose_folder(settings.weights, stored.run_id, folder, torch_thread.weight_bytes())
        )
        await torch_thread.reserve(weights)
        keeper = Checkpointer(
            folder / "checkpoints", base, torch_thread, recipe.optimise.checkpoint_every
        )
        liveness.add(keeper.pulse)
        address = settings.advertise or grpc_server.address
        async with handing_out(recipe, bus, stored.run_id, stop) as outlet:
            parts = (
                stored,
                recipe,
                store,
                trigger,
                torch_thread,
                weights,
                keeper,
                address,
                settings.tick_s,
            )
            servicer.learner = _learner(*parts, outlet=outlet)
            if recipe.resources.weights == "nccl":
                servicer.hands = Hands(weights, torch_thread.device, recipe.resources.drain_s)
            servicer.learner.note = logs.step
            await grpc_server.set_serving(True)
            working = _work(servicer.learner, kept[1] if kept else None, stop)
            await process.first_of(working, torch_thread.watch())
        keeper.done()
    finally:
        try:
            if logs is not None:
                await logs.close()
        finally:
            torch_thread.done()
            if weights is not None:
                weights.clean()


async def _work(learner: Learner, resumed: checkpoint.Mark | None, stop: asyncio.Event) -> None:
    try:
        await learner.work(resumed, stop)
    except TemporaryError as error:
        if not stop.is_set():
            raise
        log.warning(
            "stopped at step %d: %s; the next learner goes on from the store",
            learner.at.step,
            error,
        )
    await stop.wait()


def _learner(
    stored: runstore_service_pb2.Run,
    recipe: Recipe,
    store: GrpcStore,
    trigger: ClosedTrees,
    torch_thread: TorchThread,
    weights: WeightFolder,
    keeper: Checkpointer,
    address: str,
    tick_s: float,
    outlet: Outlet,
) -> Learner:
    held_out = frozenset(stored.held_out)
    parts = store, trigger, torch_thread, weights, keeper, address, tick_s
    return Learner(stored.run_id, recipe, held_out, *parts, outlet=outlet)
