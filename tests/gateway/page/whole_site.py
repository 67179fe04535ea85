"""A real gateway over a store with runs in several states: grown trees, steps, dead letters."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1.gateway_service_pb2_grpc import GatewayServiceStub
from banyan.v1.runstore_service_pb2 import RunState as S
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.messaging.bus import Bus
from services.chassis.process.process import cancelled
from services.chassis.rpc import rpc
from services.gateway import service as gateway
from services.gateway.settings import Settings
from tests.gateway.conftest import make_recipe
from tests.gateway.live_site import channel, store_and_broker, trusting
from tests.gateway.page.made_trees import HOSTILE, RunForge, grow
from tests.treestore.client import Store

SPARES = [f"spare-{number:02}" for number in range(12)]
LETTERS = 12


@dataclass(frozen=True)
class WholeSite:
    """A gateway's page and what there is to be asked for.

    address: host:port of the page
    runs, trees, segments: ids of runs that are not removed, and of what they hold
    paused: a run that is paused
    spares: runs that are over, to be removed
    """

    address: str
    runs: list[str]
    trees: list[str]
    segments: list[str]
    paused: str
    spares: list[str]


@contextlib.asynccontextmanager
async def whole_site(state: Path, secret: str) -> AsyncIterator[WholeSite]:
    """Run a broker, a store with runs in it, and a gateway whose page wants a secret."""
    async with store_and_broker(state) as (nats, creds, address), channel(address) as stored:
        bus = await Bus.connect(f"nats://{nats}", "test", creds=creds, **_tls(state))
        store = Store(
            bus,
            TreeStoreServiceStub(stored),
            RunStoreServiceStub(stored),
            RunForge(),
            stored,
            address,
        )
        trees, segments = await _filled(store)
        settings = Settings(
            nats=f"nats://{nats}",
            nats_creds=creds,
            **trusting(state),
            store=address,
            listen="127.0.0.1:0",
            http_listen="127.0.0.1:0",
            state=state,
            secret_file=str(_secret(state, secret)),
        )
        async with gateway.serving(settings) as running:
            driving = asyncio.create_task(running.drivers.run())
            try:
                live, paused = await _created(running.address, secret)
                page = await asyncio.wait_for(running.page.address, 30.0)
                runs = [store.forge.run_id, live]
                yield WholeSite(page, runs, trees, segments, paused, SPARES)
            finally:
                await cancelled([driving])
                await bus.close()


def _secret(state: Path, secret: str) -> Path:
    file = state / "secret"
    file.write_text(secret)
    file.chmod(0o600)
    return file


def _tls(state: Path) -> dict[str, str]:
    given = trusting(state)
    return {"tls_root": given["nats_tls_root"], "tls_name": given["nats_tls_name"]}


async def _filled(store: Store) -> tuple[list[str], list[str]]:
    """Store runs and trees, and end the runs; return the ids of trees and segments."""
    forge = store.forge
    await store.begin()
    hostile = json.dumps([{"role": HOSTILE, "content": [HOSTILE, "\ud800"]}])
    specs = [forge.spec(0, index=index, size=2) for index in range(2)]
    specs += [forge.spec(1, messages_json=hostile), forge.spec(2, label="before-greedy")]
    leaves = [await grow(store, spec, (2, 2), text=HOSTILE) for spec in specs]
    growing = forge.spec(3)
    await store.publish(forge.opened(growing))
    await store.claim(growing.tree_id)
    for number in range(4):
        await _step(store, number)
    for number in range(LETTERS):
        await _letter(store, number)
    for run_id in SPARES:
        run = forge.run()
        run.run_id = run_id
        put = rs.PutRunRequest(run=run, request_id=run_id, gateway_epoch=1)
        await rpc.call(store.runs.PutRun, put)
    for run_id in (forge.run_id, *SPARES):
        move = rs.MoveRunRequest(
            run_id=run_id,
            from_state=S.RUN_STATE_TRAINING,
            to_state=S.RUN_STATE_CANCELLED,
            cause=HOSTILE,
            gateway_epoch=1,
        )
        await rpc.call(store.runs.MoveRun, move)
    ids = [segment.id.hex() for of_tree in leaves for segment in of_tree]
    return [spec.tree_id.hex() for spec in (*specs, growing)], ids


async def _step(store: Store, number: int) -> None:
    policy = tree_pb2.PolicyRef(learner_epoch=1, step=number, digest=bytes([number + 1]) * 32)
    metrics = {"reward": number / 10, "kl": float("nan")} if number else {}
    published = events_pb2.PolicyPublished(
        run_id=store.forge.run_id, policy=policy, metrics=metrics
    )
    await rpc.call(store.runs.PutPolicy, rs.PutPolicyRequest(policy=published))


async def _letter(store: Store, number: int) -> None:
    letter = events_pb2.DeadLetter(
        stream="LINEAGE",
        sequence=number + 1,
        subject=f"lineage.{store.forge.run_id}.segment",
        reason=HOSTILE,
        payload=b"no message",
        service="treestore",
    )
    await store.bus.publish("dead.LINEAGE", letter, f"dead-{number}")


async def _created(address: str, secret: str) -> list[str]:
    """Create two runs, and pause the second; return their ids."""
    opened: grpc.aio.Channel = rpc.channel(address, secret=secret)
    try:
        stub: Any = GatewayServiceStub(opened)
        request = gw.CreateRunRequest(recipe_json=make_recipe().model_dump_json())
        ids = [(await rpc.call(stub.CreateRun, request)).run.run_id for _ in range(2)]
        await rpc.call(stub.CancelRun, gw.CancelRunRequest(run_id=ids[1], pause=True))
        return ids
    finally:
        await opened.close(None)
