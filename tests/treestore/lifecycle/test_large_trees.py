"""A tree that is too large for a message can be claimed: its segments come in parts."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from banyan.errors import Refused
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.rpc import rpc
from services.rollout.clients.treestore import GrpcStore
from services.treestore.lifecycle import claim_batch
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.verifier.store import GrpcStore as VerifierStore
from tests.treestore.client import Store, served
from tests.treestore.forge import World
from tests.treestore.work import statements


async def _half_grown(store: Store, width: int = 3) -> bytes:
    """Store a tree with a root and branches, and return its id."""
    forge, spec = store.forge, store.forge.spec()
    await store.publish(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    branches = [forge.child(root, n) for n in range(width)]
    await store.publish(forge.segments(root, *branches, epoch=epoch))
    wait = ts.AwaitIngestedRequest(
        tree_id=spec.tree_id, epoch=epoch, segment_ids=[branches[-1].id], deadline_ms=10_000
    )
    await rpc.call(store.trees.AwaitIngested, wait, deadline_s=15)
    return bytes(spec.tree_id)


@pytest.mark.parametrize("part", [1, 1 << 20])
async def test_in_parts_it_is_the_same_tree(
    store: Store, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    tree_id = await _half_grown(store)
    node = GrpcStore(store.channel, store.forge.run_id, "node-1")
    whole = await node.claim(tree_id, 1)
    monkeypatch.setattr(claim_batch, "MAX_BYTES_ALONE", 100)
    monkeypatch.setattr(claim_batch, "_PART_BYTES", part)
    alone = await rpc.call(
        store.trees.ClaimTree, ts.ClaimTreeRequest(tree_id=tree_id, node_id="node-1", ticket=1)
    )
    assert alone.streamed and not alone.tree.segments
    parted = await node.claim(tree_id, 1)
    assert parted.epoch == whole.epoch + 2
    parted.tree.claim_epoch = whole.tree.claim_epoch
    assert parted.tree == whole.tree and len(whole.tree.segments) == 4
    with pytest.raises(Refused, match="is over"):
        await node._stream_claimed(tree_id, whole.epoch)


@pytest.mark.slow
async def test_a_tree_of_more_bytes_than_a_message_may_have_is_claimed(
    nats_server: Any, tmp_path: Path
) -> None:
    """It has 96 MiB; a message has at most 64."""
    state = tmp_path / "state"
    async with served(nats_server.url, state) as store:
        tree_id = await _half_grown(store)
    world = World(Database(f"sqlite:///{state / 'store.sqlite'}").open())
    large = (
        update(schema.segments)
        .where(schema.segments.c.parent != b"")
        .values(entropies=bytes(32 << 20))
    )
    world.database.transact(lambda c: c.execute(large))
    world.database.close()
    async with served(nats_server.url, state, begin=False) as store:
        claim = await GrpcStore(store.channel, store.forge.run_id, "node-1").claim(tree_id, 1)
    assert [len(s.entropies) >> 20 for s in claim.tree.segments] == [0, 32, 32, 32]


async def test_where_a_tree_stands_costs_no_look_at_its_segments(store: Store) -> None:
    tree_id = await _half_grown(store)
    verifier = VerifierStore(store.channel)
    with statements() as executed:
        standing = await verifier.standing(tree_id)
    assert standing is not None and (standing.claim_epoch, standing.over) == (1, False)
    mine = [statement for statement in executed if "tree_id IN" in statement]
    assert mine and not [s for s in mine if "FROM segments" in s or "FROM leaves" in s]
    assert await verifier.standing(bytes(32)) is None
