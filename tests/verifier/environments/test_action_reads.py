"""Reads of actions share calls, and no caller fills those of the others."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.v1 import verifier_service_pb2 as pb
from services.verifier.environments.action_reads import ActionReads
from services.verifier.environments.asked import OURS, Caller
from services.verifier.server import VerifierServer
from tests.broker import NatsServer
from tests.treestore.client import served


async def test_ids_that_nothing_has_are_refused_and_others_are_read(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """In one call they would be larger than the store takes, and all of it would be refused."""
    async with served(nats_server.url, tmp_path) as store:
        spec = store.forge.spec()
        await store.publish(store.forge.opened(spec))
        epoch = await store.claim(spec.tree_id)
        reads, node = ActionReads(store.trees), Caller(store.forge.run_id, "n-1")
        huge = b"x" * (2 << 20)
        found = await asyncio.gather(
            *(reads.read(huge, 1, b"a" * 32, 0.0, node) for _ in range(40)),
            *(reads.read(spec.tree_id, epoch, huge, 0.0, node) for _ in range(40)),
            reads.read(spec.tree_id, epoch, b"a" * 32, 0.0, OURS),
            return_exceptions=True,
        )
    assert all(isinstance(one, InvalidInput) for one in found[:-1])
    assert not isinstance(found[-1], BaseException), "that action is not stored yet, and no more"


async def test_an_action_that_no_model_says_is_refused() -> None:
    unused: Any = None
    server = VerifierServer(unused, 1, unused, unused)
    context = SimpleNamespace(invocation_metadata=lambda: ())
    with pytest.raises(InvalidInput, match="an action has 1048577 characters; at most 1048576"):
        await server.Act(pb.ActRequest(call="x" * ((1 << 20) + 1)), context)
