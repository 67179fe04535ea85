"""The leave to act outside, of a store that stands still for a while."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1 import treestore_service_pb2_grpc
from services.chassis.rpc import rpc
from services.verifier import store as module
from services.verifier.store import GrpcStore


class Still(treestore_service_pb2_grpc.TreeStoreServiceServicer):
    """A store that answers late, and gives the leave once."""

    def __init__(self) -> None:
        self.begun = 0

    async def BeginEffect(self, request: Any, context: Any) -> ts.BeginEffectResponse:
        self.begun += 1
        await asyncio.sleep(0.6)
        return ts.BeginEffectResponse(begun=self.begun == 1)


async def test_a_leave_is_waited_for_longer_than_other_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given up, it would be EFFECT_UNKNOWN for a call that was never made."""
    monkeypatch.setattr(module, "_CALL_S", 0.2)
    still = Still()

    def add(to: grpc.aio.Server) -> None:
        treestore_service_pb2_grpc.add_TreeStoreServiceServicer_to_server(still, to)

    server = await rpc.serve("127.0.0.1:0", [add], ["x"])
    async with rpc.channel(server.address) as channel:
        assert await GrpcStore(channel).begin_effect(b"t" * 32, 1, b"a" * 32, "send")
    await server.stop(0)
