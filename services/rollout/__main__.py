"""`python -m services.rollout`: one rollout node of one run."""

import asyncio
import os
from collections.abc import Callable

import grpc.aio

from banyan.recipe import Recipe
from banyan.runtime import garbage, torch_environment
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects.object_store import Bucket
from services.chassis.process import cores, process, settings
from services.chassis.rpc import rpc
from services.chassis.rpc.health import Liveness
from services.rollout.clients import subscriptions
from services.rollout.clients.learner import HandOverClient, WeightClient
from services.rollout.clients.treestore import GrpcStore
from services.rollout.clients.verifier import GrpcEnvironments
from services.rollout.engines.factory import import_libraries, maker
from services.rollout.engines.port import Engine
from services.rollout.engines.thread import EngineThread
from services.rollout.node.config import NodeConfig
from services.rollout.node.node import Node
from services.rollout.ports import Source
from services.rollout.server import NAME, RolloutServer, adder
from services.rollout.settings import Settings
from services.rollout.weights import collective
from services.rollout.weights.collective import CollectiveWeights
from services.rollout.weights.delta_fetch import Rebuilder, whole_requester
from services.rollout.weights.fetch import Weights


async def run(stop: asyncio.Event) -> None:
    """Run the node until `stop`, a drain, or (joined) the end of the run."""
    own = settings.read(Settings)
    # A joined node's own secret opens only its own port.
    channel = rpc.channel(
        own.store,
        secret="" if own.joined else own.secret,
        root_pem=own.store_tls_root.read_bytes() if own.store_tls_root else None,
        token=own.store_token,
        target_name=own.store_tls_name,
    )
    bus = await _bus(own)
    try:
        store = GrpcStore(channel, own.run, own.node_id, own.joined)
        recipe = Recipe.model_validate_json((await store.run()).recipe_json)
        await store.begin()
        if not own.joined:
            await bus.ensure_streams()
        if recipe.resources.engine == "torch":  # vLLM places its threads itself
            torch_environment.bind(os.environ, own.threads)
        thread = EngineThread(
            lambda: _engine(recipe, own.threads),
            lockstep=recipe.deterministic,
            before_step=_before_step(own, recipe),
        )
        node = await _node(own, recipe, thread, store=store, bus=bus, channel=channel)
        await _serve(own, node, thread, stop)
    finally:
        await channel.close(None)
        await bus.close()


def _engine(recipe: Recipe, threads: int | None) -> Engine:
    """Build the engine, in its thread."""
    with garbage.paused():
        import_libraries(recipe)
    return maker(recipe, threads)()


async def _bus(own: Settings) -> Bus:
    return await Bus.of(own, f"rollout-{own.node_id}", inbox_prefix=own.nats_inbox)


async def _node(
    own: Settings,
    recipe: Recipe,
    thread: EngineThread,
    *,
    store: GrpcStore,
    bus: Bus,
    channel: grpc.aio.Channel,
) -> Node:
    resources = recipe.resources
    config = NodeConfig(
        run_id=own.run,
        node_id=own.node_id,
        max_branches=resources.max_branches,
        joined=own.joined,
        lockstep=recipe.deterministic,
        policy_wait_s=own.policy_wait_s,
        segment_deadline_s=own.segment_deadline_s,
        drain_s=own.drain_s,
        refresh_s=resources.drain_s if resources.refresh == "drain" else 0.0,
    )
    drops_growing = recipe.control.redundancy > 0 or recipe.control.stale_groups == "drop"
    hears_closings = drops_growing and not own.joined
    weights = _weights(own, recipe, channel, bus) if resources.engine != "scripted" else None
    return Node(
        config,
        store,
        bus,
        await subscriptions.assignments(bus, own.run, own.growth_consumer),
        thread=thread,
        weights=weights,
        triggers=subscriptions.policy_events(bus, own.run),
        closings=subscriptions.closed_events(bus, own.run) if hears_closings else None,
        environments=_environments(own, recipe, channel),
    )


def _environments(
    own: Settings, recipe: Recipe, channel: grpc.aio.Channel
) -> GrpcEnvironments | None:
    """Return the way to the verifier, which for a joined node leads through the gateway."""
    if recipe.environment is None:
        return None
    if own.joined:
        return GrpcEnvironments(channel)
    return GrpcEnvironments(rpc.channel(own.verifier, secret=own.secret))


def _weights(own: Settings, recipe: Recipe, channel: grpc.aio.Channel, bus: Bus) -> Source:
    folder, resources = own.state / "weights" / own.node_id, recipe.resources
    if own.joined:
        # It has no right to the object store, and paths of a far host mean nothing on this one.
        return Weights(folder, WeightClient(channel).fetch, local=False)
    if resources.weights == "nccl":
        workers = collective.workers(resources)
        client = HandOverClient(own.node_id, workers, own.secret)
        return CollectiveWeights(folder, client.hand_over, workers)
    fetch = WeightClient(secret=own.secret).fetch
    if resources.weights == "nats":
        rebuilder = Rebuilder(
            Bucket(bus.client, subjects.weights_bucket(own.run)),
            whole_requester(bus, own.run, own.node_id),
        )
        fallback = fetch if resources.weights_fallback == "fetch" else None
        return Weights(folder, fallback, rebuilder=rebuilder)
    return Weights(folder, fetch)


def _before_step(own: Settings, recipe: Recipe) -> Callable[[], None]:
    """Return the function that adapts the torch threads of the engine before each step."""
    if recipe.resources.engine != "torch":  # vLLM's threads are its own, and a script has none
        return lambda: None
    return cores.follow(cores.CoreShare(own.threads_file, own.threads))


async def _serve(own: Settings, node: Node, thread: EngineThread, stop: asyncio.Event) -> None:
    liveness = Liveness()
    liveness.add(thread.pulse, *node.pulses)
    server = await rpc.serve(
        own.listen,
        [adder(RolloutServer(node, thread))],
        [NAME],
        secret=own.secret,
        secret_file=own.secret_file,
        liveness=liveness,
    )
    try:
        await server.set_serving(False)
        await thread.start()
        await server.set_serving(True)
        await node.run(stop)
    finally:
        await server.stop()
        await thread.stop()


def main() -> None:
    """Run the node until it is stopped."""
    torch_environment.settle(os.environ)  # the engine's thread imports torch, long after this
    process.main("rollout", run)


if __name__ == "__main__":
    main()
