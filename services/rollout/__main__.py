"""`python -m services.rollout`: one rollout node of one run."""

import asyncio
import os
from collections.abc import Callable

import grpc.aio

from banyan.recipe import Recipe
from banyan.runtime import torch_environment
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.object_store import Bucket
from services.chassis.process import cores, process, settings
from services.chassis.rpc import rpc
from services.chassis.rpc.health import Liveness
from services.rollout.clients import subscriptions
from services.rollout.clients.treestore import GrpcStore, HandOvers, WeightServer
from services.rollout.engines.factory import maker
from services.rollout.engines.thread import EngineThread
from services.rollout.node.config import NodeConfig
from services.rollout.node.node import Node
from services.rollout.ports import Source
from services.rollout.server import NAME, RolloutServer, adder
from services.rollout.settings import Settings
from services.rollout.weights import collective
from services.rollout.weights.collective import Handed
from services.rollout.weights.delta_fetch import Rebuilder, asker
from services.rollout.weights.fetch import Weights


async def run(stop: asyncio.Event) -> None:
    """The node until `stop`, a drain, or (joined) the end of the run."""
    given = settings.read(Settings)
    root = given.store_tls_root.read_bytes() if given.store_tls_root else None
    secret = (
        "" if given.joined else given.secret
    )  # a joined node's own secret opens its own port only
    channel = rpc.channel(
        given.store,
        secret=secret,
        root_pem=root,
        token=given.store_token,
        target_name=given.store_tls_name,
    )
    bus = await _bus(given)
    try:
        store = GrpcStore(channel, given.run, given.node_id, given.joined)
        recipe = Recipe.model_validate_json((await store.run()).recipe_json)
        await store.begin()
        if not given.joined:
            await bus.ensure_streams()
        weights = _weights(given, recipe, channel, bus)
        await _serve(given, recipe, store, bus, weights, stop)
    finally:
        await channel.close(None)
        await bus.close()


def _weights(given: Settings, recipe: Recipe, channel: grpc.aio.Channel, bus: Bus) -> Source:
    folder, resources = given.state / "weights" / given.node_id, recipe.resources
    if given.joined:  # it may not read the object store; and whatever a far host says of its paths, this host's are not meant
        return Weights(folder, WeightServer(channel).fetch, local=False)
    if resources.weights == "nccl":
        workers = collective.workers(resources)
        return Handed(folder, HandOvers(given.node_id, workers, given.secret).ask, workers)
    fetch = WeightServer(secret=given.secret).fetch
    if resources.weights == "nats":
        rebuilder = Rebuilder(
            Bucket(bus.client, subjects.weights_bucket(given.run)),
            asker(bus, given.run, given.node_id),
        )
        return Weights(
            folder, fetch if resources.weights_fallback == "fetch" else None, rebuilder=rebuilder
        )
    return Weights(folder, fetch)


def _settling(given: Settings, recipe: Recipe) -> Callable[[], None]:
    if recipe.resources.engine != "torch":  # vLLM's threads are its own, and a script has none
        return lambda: None
    return cores.follow(cores.CoreShare(given.threads_file, given.threads))


async def _bus(given: Settings) -> Bus:
    return await Bus.connect(
        given.nats,
        f"rollout-{given.node_id}",
        creds=given.nats_creds,
        inbox_prefix=given.nats_inbox,
        tls_root=given.nats_tls_root,
        tls_name=given.nats_tls_name,
    )


async def _serve(
    given: Settings,
    recipe: Recipe,
    store: GrpcStore,
    bus: Bus,
    weights: Source,
    stop: asyncio.Event,
) -> None:
    plan = NodeConfig(
        run_id=given.run,
        node_id=given.node_id,
        max_branches=recipe.resources.max_branches,
        joined=given.joined,
        lockstep=recipe.deterministic,
        policy_wait_s=given.policy_wait_s,
        segment_deadline_s=given.segment_deadline_s,
        drain_s=given.drain_s,
        refresh_s=recipe.resources.drain_s if recipe.resources.refresh == "drain" else 0.0,
    )
    if recipe.resources.engine == "torch":  # vLLM places its threads itself
        torch_environment.bind(os.environ, given.threads)
    thread = EngineThread(
        maker(recipe, given.threads),
        lockstep=recipe.deterministic,
        before_step=_settling(given, recipe),
    )
    queue = await subscriptions.assignments(bus, given.run, given.growth_consumer)
    files = None if recipe.resources.engine == "scripted" else weights
    spare = recipe.control.redundancy > 0 or recipe.control.stale_groups == "drop"
    closings = subscriptions.closed_events(bus, given.run) if spare and not given.joined else None
    node = Node(
        plan,
        store,
        bus,
        queue,
        thread,
        files,
        subscriptions.policy_events(bus, given.run),
        closings,
    )
    liveness = Liveness()
    liveness.add(thread.pulse, *node.pulses)
    server = await rpc.serve(
        given.listen,
        [adder(RolloutServer(node, thread))],
        [NAME],
        secret=given.secret,
        secret_file=given.secret_file,
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
    """Runs the node until it is told to stop."""
    torch_environment.settle(os.environ)  # the engine's thread imports torch, long after this
    process.main("rollout", run)


if __name__ == "__main__":
    main()
