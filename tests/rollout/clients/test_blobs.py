"""Segments that are too large for a message reach the store as blobs."""

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
from tests.rollout.growing import TREEPO
from tests.rollout.node.test_node import RUN, SLOW, TREE, small  # noqa: F401
from tests.rollout.world import ids

LENGTH = 150_000  # tokens; 1.2 MB with their log-probs, more than the broker takes


def _root(tree_id: bytes) -> Segment:
    return Segment(
        tree_id=tree_id,
        parent=b"",
        fork=0,
        ordinal=0,
        kind=Kind.PROMPT,
        tokens_T=np.arange(3, dtype=np.int32),
        text="go",
    )


def _large(root: Segment) -> Segment:
    return Segment(
        tree_id=root.tree_id,
        parent=root.id,
        fork=len(root),
        ordinal=0,
        kind=Kind.POLICY,
        tokens_T=np.arange(LENGTH, dtype=np.int32),
        logprobs_T=-np.ones(LENGTH, np.float32),
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
    root = _root(tree_id)
    large = _large(root)
    claimed = [(root, claim.epoch), (large, claim.epoch)]
    with pytest.raises(InvalidInput, match="limit"):
        for event in messages.segments(RUN, "n1", claimed):
            await small.bus.publish(event.subject, event.message, event.msg_id)
    for attempt in range(2):  # missing events are published again
        for event in messages.segments(RUN, "n1", claimed):
            light = (await Blobs(store).move_large_segments(event)).again(attempt)
            assert light.message.ByteSize() < 1000
            await small.bus.publish(light.subject, light.message, light.msg_id)
    await store.await_ingested(tree_id, claim.epoch, [root.id, large.id], 0.1)
    request = ts.AwaitIngestedRequest(
        tree_id=tree_id,
        epoch=claim.epoch,
        segment_ids=[root.id, large.id],
        deadline_ms=10_000,
    )
    answer = await rpc.call(small.trees.AwaitIngested, request, 15)
    assert not answer.missing and not answer.refused
    stored = (await small.state(tree_id)).segments[1]
    assert segments.segment_from_wire(stored).id == large.id


async def test_a_node_sends_large_segments_as_blobs(small, monkeypatch) -> None:  # noqa: F811
    for module in (blobs, messages, chunks):
        monkeypatch.setattr(module, "MAX_MESSAGE_BYTES", 300)
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node():
        opened = await small.open(2, TREE, TREEPO, max_new_tokens=12)
        for tree in await small.grown(opened):
            assert len(tree.leaves) == 8 and len(ids(tree)) == len(tree.segments)


class _Store:
    """A store that is away for two calls and then raises an error, if there is one."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.calls = error, 0

    async def put_blob(self, tree_id: bytes, epoch: int, data: bytes) -> None:
        self.calls += 1
        if self.calls < 3:
            raise TemporaryError("away")
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("refusal", [None, InvalidInput("over the limit of 5")])
async def test_blobs_wait_for_a_store_that_is_away_not_for_one_that_refuses(
    refusal, monkeypatch
) -> None:
    monkeypatch.setattr(blobs, "_RETRY_S", 0.0)
    large = _large(_root(b"t" * 32))
    (event,) = messages.segments(RUN, "n1", [(large, 1)])
    store = _Store(refusal)
    message = (await Blobs(store).move_large_segments(event)).message  # type: ignore[arg-type]
    assert isinstance(message, events_pb2.SegmentsGrown) and store.calls == 3
    named = [grown.segment.id for grown in message.segments]
    assert named == ([] if refusal else [large.id])
