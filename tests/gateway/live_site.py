"""A real site in this process: nats-server with accounts, treestore on SQLite, verifier, and
gateway.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from banyan.environments import receipts
from banyan.errors import BanyanError
from banyan.runtime import ports
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1.gateway_service_pb2_grpc import GatewayServiceStub
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.process import nats_server
from services.chassis.rpc import rpc
from services.gateway import service as gateway
from services.gateway.join import nats_accounts, tls
from services.gateway.settings import Settings
from services.treestore import service as treestore
from services.treestore.storage.settings import Settings as StoreSettings
from services.verifier.environments.actions import Actions
from services.verifier.server import NAME as VERIFIER
from services.verifier.server import VerifierServer, adder
from services.verifier.store import GrpcStore


@dataclass
class Site:
    """Addresses and stubs of a site."""

    state: Path
    settings: Settings
    running: gateway.Running
    gateway: Any
    runs: Any
    trees: Any
    driving: Any = None

    async def create(self, recipe: Any) -> runs.Run:
        request = pb.CreateRunRequest(recipe_json=recipe.model_dump_json())
        return (await rpc.call(self.gateway.CreateRun, request)).run

    async def token(self, run_id: str, valid_s: int = 60) -> str:
        request = pb.CreateTokenRequest(run_id=run_id, valid_s=valid_s)
        return (await rpc.call(self.gateway.CreateToken, request)).token

    async def progress(self, run_id: str) -> runs.ReadProgressResponse:
        return await rpc.call(self.runs.ReadProgress, runs.ReadProgressRequest(run_id=run_id))

    async def run(self, run_id: str) -> runs.Run:
        return (await rpc.call(self.runs.ReadRun, runs.ReadRunRequest(run_id=run_id))).run

    async def publish_policy(
        self, run_id: str, step: int, address: str = "", epoch: int = 1
    ) -> None:
        if step == 0:
            request = runs.TakeLearnerEpochRequest(run_id=run_id, learner_id="test")
            epoch = (await rpc.call(self.runs.TakeLearnerEpoch, request)).epoch
        policy = tree_pb2.PolicyRef(learner_epoch=epoch, step=step, digest=bytes([step + 1]) * 32)
        published = events_pb2.PolicyPublished(run_id=run_id, policy=policy, address=address)
        await rpc.call(self.runs.PutPolicy, runs.PutPolicyRequest(policy=published))


def trusting(state: Path) -> dict[str, Any]:
    """Return the settings with which a service trusts the broker of a state folder."""
    return {"nats_tls_root": str(tls.certificate(state)), "nats_tls_name": tls.NAME}


@contextlib.asynccontextmanager
async def store_and_broker(
    state: Path, listen: str = "127.0.0.1:0"
) -> AsyncIterator[tuple[str, str, str]]:
    """Run a broker with accounts and a treestore.

    Yield the address of NATS, the credentials file, and the address of the store.
    """
    nats = f"127.0.0.1:{ports.free_port()}"
    config = nats_accounts.write_nats_config(state, nats, state / "jetstream", tls.identity(state))
    process = nats_server.start(config, state / "nats.log")
    try:
        nats_server.await_listening(nats, process, state / "nats.log", tls=True)
        creds = str(nats_accounts.service_credentials(state))
        settings = StoreSettings(
            nats=f"nats://{nats}", nats_creds=creds, listen=listen, state=state, **trusting(state)
        )
        async with treestore.running(settings) as (server, _):
            yield nats, creds, server.address
    finally:
        process.terminate()
        process.wait(5)


@contextlib.asynccontextmanager
async def verifier(store: str) -> AsyncIterator[str]:
    """Serve the answers of environments that run no code, and nothing else. Yield the address."""
    unused: Any = None
    async with channel(store) as opened:
        actions = Actions(GrpcStore(opened), receipts.key_of(""))
        service = VerifierServer(unused, 1, actions, unused)
        server = await rpc.serve("127.0.0.1:0", [adder(service)], [VERIFIER])
        try:
            yield server.address
        finally:
            await server.stop(0)


@contextlib.asynccontextmanager
async def site(state: Path) -> AsyncIterator[Site]:
    """Run a whole site, with the drivers running."""
    async with store_and_broker(state) as (nats, creds, store), verifier(store) as answering:
        settings = Settings(
            nats=f"nats://{nats}",
            nats_creds=creds,
            **trusting(state),
            store=store,
            listen="127.0.0.1:0",
            join_listen="127.0.0.1:0",
            join_nats=f":{nats.rsplit(':', 1)[1]}",
            verifier=answering,
            state=state,
        )
        async with (
            gateway.serving(settings) as running,
            channel(running.address) as plain,
            channel(store) as stored,
        ):
            driving = asyncio.create_task(running.drivers.run())
            yield Site(
                state=state,
                settings=settings,
                running=running,
                gateway=GatewayServiceStub(plain),
                runs=RunStoreServiceStub(stored),
                trees=TreeStoreServiceStub(stored),
                driving=driving,
            )
            driving.cancel()
            with contextlib.suppress(asyncio.CancelledError, BanyanError):
                await driving


@contextlib.asynccontextmanager
async def channel(address: str, **more: Any) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel until the block is left."""
    opened = rpc.channel(address, **more)
    try:
        yield opened
    finally:
        await opened.close(None)


@contextlib.asynccontextmanager
async def node_channel(env: dict[str, str]) -> AsyncIterator[grpc.aio.Channel]:
    """Open a joined node's channel to the join port, with the environment of its admission."""
    root, name = Path(env["BANYAN_STORE_TLS_ROOT"]).read_bytes(), env["BANYAN_STORE_TLS_NAME"]
    async with channel(
        env["BANYAN_STORE"], root_pem=root, token=env["BANYAN_STORE_TOKEN"], target_name=name
    ) as opened:
        yield opened
