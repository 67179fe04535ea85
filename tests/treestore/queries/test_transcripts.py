"""Leaves as a verifier reads them: once they are stored, with their text, and the scorers that
still owe a score.
"""

import asyncio

from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.rpc import rpc
from services.treestore.queries import transcripts
from tests.treestore.client import Store


async def test_leaves_are_read_once_they_are_stored(store: Store) -> None:
    forge, spec = (
        store.forge,
        store.forge.spec(traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
    )
    await store.publish(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    middle = forge.child(root, 0, finish=1)
    leaf = forge.child(middle, 1)
    key = ts.LeafKey(tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=leaf.id, end=len(leaf)))
    ask = ts.ReadLeavesRequest(leaves=[key], deadline_ms=20_000)
    waiting = asyncio.ensure_future(rpc.call(store.trees.ReadLeaves, ask, deadline_s=25))
    await store.publish(
        forge.leaf(leaf, epoch=epoch), forge.segments(leaf, middle, root, epoch=epoch)
    )
    answer = (await asyncio.wait_for(waiting, 5)).transcripts
    assert len(answer) == 1 and answer[0].key == key
    assert answer[0].completion == "<0><1>" and answer[0].completion_tokens == 8
    assert answer[0].row_json == spec.row_json and list(answer[0].scorers) == ["number"]
    assert (
        answer[0].finish == tree_pb2.SEGMENT_FINISH_STOP
        and answer[0].traceparent == spec.traceparent
    )
    await store.publish(forge.score(leaf))
    ask.deadline_ms = 0
    for _ in range(500):
        answer = (await rpc.call(store.trees.ReadLeaves, ask)).transcripts
        if not answer[0].scorers:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the scorer still owes a score")


async def test_a_path_that_leaves_a_segment_early_needs_its_text(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.publish(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    trunk = forge.child(root, 0)
    inside = forge.child(trunk, 0, fork=2)
    await store.publish(
        forge.segments(root, trunk, inside, epoch=epoch), forge.leaf(trunk, epoch=epoch)
    )
    await store.publish(forge.leaf(inside, epoch=epoch, completion="exact text"))
    keys = [
        ts.LeafKey(tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=s.id, end=len(s)))
        for s in (trunk, inside)
    ]
    answer = await rpc.call(
        store.trees.ReadLeaves, ts.ReadLeavesRequest(leaves=keys, deadline_ms=9000), deadline_s=10
    )
    assert [t.completion for t in answer.transcripts] == ["<0>", "exact text"]
    assert [t.completion_tokens for t in answer.transcripts] == [4, 6]


async def test_a_refused_leaf_has_no_scorer_to_ask(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.publish(forge.opened(spec))
    old = await store.claim(spec.tree_id)
    await store.claim(spec.tree_id)
    root = forge.root(spec)
    await store.publish(forge.leaf(root, epoch=old))
    key = ts.LeafKey(
        tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=root.id, end=len(root)), claim_epoch=old
    )
    ask = ts.ReadLeavesRequest(leaves=[key], deadline_ms=9000)
    answer = await rpc.call(store.trees.ReadLeaves, ask, deadline_s=10)
    assert len(answer.transcripts) == 1 and not answer.transcripts[0].scorers


async def test_a_leaf_refused_under_an_old_claim_is_still_awaited_under_the_new_one(
    store: Store,
) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.publish(forge.opened(spec))
    old, new = await store.claim(spec.tree_id), await store.claim(spec.tree_id)
    root = forge.root(spec)
    await store.publish(forge.segments(root, epoch=new), forge.leaf(root, epoch=old))
    key = ts.LeafKey(
        tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=root.id, end=len(root)), claim_epoch=new
    )
    ask = ts.ReadLeavesRequest(leaves=[key], deadline_ms=9000)
    waiting = asyncio.ensure_future(rpc.call(store.trees.ReadLeaves, ask, deadline_s=10))
    await store.publish(forge.leaf(root, epoch=new))
    assert list((await waiting).transcripts[0].scorers) == list(spec.scorers)


def test_an_answer_holds_the_first_leaves_that_it_has_room_for() -> None:
    keys = [ts.LeafKey(tree_id=bytes([n])) for n in range(5)]

    def answered(*characters: int) -> tuple[list[int], int]:
        """Return the places that are answered, and the number of those that are not."""
        stored = [
            ts.LeafTranscript(key=key, completion="x" * length)
            for key, length in zip(keys, characters, strict=True)
            if length
        ]
        response = transcripts.answer(keys, stored)
        return [t.key.tree_id[0] for t in response.transcripts], response.unread

    half = transcripts.MOST_BYTES // 2
    assert answered(1, 0, 1, 0, 1) == ([0, 2, 4], 0)
    assert answered(half, 0, half, 1, 1) == ([0], 3)
    assert answered(0, 3 * half, 0, 1, 1) == ([1], 2), "one, whatever its size"
    assert answered(0, 0, 0, 0, 0) == ([], 0)
