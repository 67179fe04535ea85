"""The node as its process wires it: its first calls, and the loops that its health covers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from banyan.runtime.ports import free_port
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.rpc import rpc
from services.rollout import __main__ as service
from services.rollout.engines import thread
from services.treestore.api.run_service import RunStoreService
from services.treestore.api.tree_service import TreeStoreService
from tests.liveness import answers_for
from tests.rollout.growing import TREEPO
from tests.rollout.world import RUN, World, world

LOOPS = (
    "engine",
    "taking trees",
    "starting trees",
    "passing on",
    "policies",
    "sending",
    "claims",
    "presence",
)


@contextlib.asynccontextmanager
async def process(w: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Run the node n1 of the world's run within the block; provide its address."""
    address, stop = f"127.0.0.1:{free_port()}", asyncio.Event()
    environment = {
        "NATS": w.url,
        "STORE": w.address,
        "LISTEN": address,
        "RUN": RUN,
        "NODE_ID": "n1",
        "THREADS": "1",
    }
    for name, value in {**environment, "STATE": str(folder)}.items():
        monkeypatch.setenv(f"BANYAN_{name}", value)
    running = asyncio.create_task(service.run(stop))
    try:
        yield address
    finally:
        stop.set()
        await asyncio.wait_for(running, 30)


async def test_health_answers_for_the_engine_and_each_loop(
    nats_server: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    # The node's own look at the engine would end it, also one that begins while the test runs.
    monkeypatch.setattr(thread.EngineThread, "watch", lambda self: asyncio.Event().wait())
    async with world(nats_server.url, tmp_path / "state") as w:
        await w.begin()
        async with process(w, tmp_path, monkeypatch) as address:
            await answers_for(address, LOOPS)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Provide the calls of the store, in order."""
    calls: list[str] = []
    put, claim = RunStoreService.PutMember, TreeStoreService.ClaimTrees

    async def put_member(self: Any, request: Any, context: Any) -> Any:
        answer = await put(self, request, context)
        calls.append(f"{request.member.node_id} {'begins' if request.begins else 'is there'}")
        return answer

    async def claim_trees(self: Any, request: Any, context: Any) -> Any:
        calls.extend(f"{each.node_id} claims" for each in request.claims)
        return await claim(self, request, context)

    monkeypatch.setattr(RunStoreService, "PutMember", put_member)
    monkeypatch.setattr(TreeStoreService, "ClaimTrees", claim_trees)
    return calls


async def test_a_node_reports_its_start_before_it_claims(
    calls: list[str], nats_server: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """It then has at once the trees that it held when it died."""
    async with world(nats_server.url, tmp_path / "state") as w:
        await w.begin()
        await w.policy(0)
        (opened,) = await w.open(
            1, {"segment": 3, "max_depth": 4, "width": 8}, TREEPO, max_new_tokens=12
        )
        queue = await service.subscriptions.assignments(w.bus, RUN)
        # The assignment is in the hands of the dead process, which answers the broker no more.
        (delivery,) = await queue.fetch(1, 10.0)
        assert delivery.data
        await rpc.call(
            w.trees.ClaimTree, ts.ClaimTreeRequest(tree_id=opened, node_id="n1", ticket=1)
        )
        async with process(w, tmp_path, monkeypatch):
            (tree,) = await w.grown([opened], 10.0)
        assert tree.claim_epoch == 2
    assert calls.count("n1 begins") == 1
    assert calls.index("n1 begins") < calls.index("n1 claims")
