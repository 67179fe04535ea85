"""Segments that are too large for a message reach the store all the same."""

from dataclasses import replace

import numpy as np
import pytest

from banyan.errors import InvalidInput, TemporaryError
from banyan.segment import Finish, Kind, Sampling, Segment
from banyan.v1 import events_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire import segments
from services.chassis.messaging import chunks
from services.chassis.rpc import rpc
from services.rollout.clients import blobs, messages
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.treestore import GrpcStore
from tests.rollout.node.test_node import RUN, SLOW, TREE, small  # noqa: F401
from tests.rollout.world import ids

LENGTH = 150_000  # tokens; 1.2 MB with their log-probs, more than the broker takes


def _large(root: Segment) -> Segment:
    tokens = np.arange(LENGTH, dtype=np.int32)
    return Segment(
        root.tree_id,
        root.id,
        len(root),
        0,
        Kind.POLICY,
        tokens,
        -np.ones(LENGTH, np.float32),
        policy=b"p" * 32,
        sampling=Sampling(max_new_tokens=LENGTH),
        finish=Finish.LENGTH,
    )


async def test_a_large_segment_goes_by_digest(small) -> None:  # noqa: F811
    await small.begin()
    (tree_id,) = await small.open(1)
    store = GrpcStore(rpc.channel(small.address), RUN, "n1")
    while await small._or_none(tree_id) is None:
        pass
    claim = await store.claim(tree_id, 1)
    root = Segment(tree_id, b"", 0, 0, Kind.PROMPT, np.arange(3, dtype=np.int32), text="go")
    large = _large(root)
    made = [(root, claim.epoch), (large, claim.epoch)]
    with pytest.raises(InvalidInput, match="limit"):
        for event in messages.segments(RUN, "n1", made):
            await small.bus.publish(event.subject, event.message, event.msg_id)
    for attempt in range(2):  # what the store lacks is said again
        for event in messages.segments(RUN, "n1", made):
            light = (await Blobs(store).light(event)).again(attempt)
            assert light.message.ByteSize() < 1000
            await small.bus.publish(light.subject, light.message, light.msg_id)
    answer = await store.ingested(tree_id, claim.epoch, [root.id, large.id], 0.1)
    request = ts.AwaitIngestedRequest(
        tree_id=tree_id, epoch=claim.epoch, segment_ids=[root.id, large.id], deadline_ms=10_000
    )
    answer = await rpc.call(small.trees.AwaitIngested, request, 15)
    assert not answer.missing and not answer.refused
    assert segments.segment_from_wire((await small.state(tree_id)).segments[1]).id == large.id


async def test_a_node_sends_what_is_large_as_blobs(small, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(blobs, "MAX_MESSAGE_BYTES", 300)
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 300)
    monkeypatch.setattr(chunks, "MAX_MESSAGE_BYTES", 300)
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node():
        opened = await small.open(
            2, TREE, "methods.generate.treepo.policy:TreePO", max_new_tokens=12
        )
        for tree in await small.grown(opened):
            assert len(tree.leaves) == 8 and len(ids(tree)) == len(tree.segments)


class _Store:
    """Away for a while, then as the test says."""

    def __init__(self, then: Exception | None) -> None:
        self.then, self.calls = then, 0

    async def put_blob(self, tree_id: bytes, epoch: int, data: bytes) -> None:
        self.calls += 1
        if self.calls < 3:
            raise TemporaryError("away")
        if self.then is not None:
            raise self.then


@pytest.mark.parametrize("refusal", [None, InvalidInput("over the limit of 5")])
async def test_a_store_that_is_away_is_waited_for_and_one_that_refuses_is_not(
    refusal, monkeypatch
) -> None:
    monkeypatch.setattr(blobs, "_AGAIN_S", 0.0)
    root = Segment(b"t" * 32, b"", 0, 0, Kind.PROMPT, np.arange(3, dtype=np.int32))
    large = replace(_large(root))
    (event,) = messages.segments(RUN, "n1", [(large, 1)])
    store = _Store(refusal)
    message = (await Blobs(store).light(event)).message  # type: ignore[arg-type]
    assert isinstance(message, events_pb2.SegmentsGrown) and store.calls == 3
    assert [g.segment.id for g in message.segments] == ([] if refusal else [large.id])
