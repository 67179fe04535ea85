"""Events: split below the limit; ids are stable for one content and differ between claims."""

import numpy as np

from banyan.plugins import LeafMark
from banyan.segment import Kind, Sampling, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.wire import segments
from services.chassis.messaging.bus import MAX_MESSAGE_BYTES
from services.rollout.clients import messages

TREE_ID = b"t" * 32


def segment(ordinal, tokens):
    return Segment(
        tree_id=bytes(32),
        parent=b"p" * 32,
        fork=3,
        ordinal=ordinal,
        kind=Kind.POLICY,
        tokens_T=np.arange(tokens),
        logprobs_T=-np.ones(tokens),
        policy=b"w",
        sampling=Sampling(),
    )


def leaf(number, completion=""):
    mark = LeafMark(Leaf(number.to_bytes(32, "big"), 3), "stop")
    return messages.leaf("run", TREE_ID, 1, mark, completion)


def grew(number, tokens):
    """Return the event of a segment with a plan."""
    record = tree_pb2.PlanRecord(claim_epoch=1, number=number)
    plan = events_pb2.GrownPlan(tree_id=bytes(32), plan=record)
    claimed = [(segment(number, tokens), 1)]
    return next(messages.segments("run", "node", claimed, f"00-{number}", [plan]))


def test_segments_of_a_step_are_one_message():
    claimed = [(segment(i, 8), 3) for i in range(64)]
    (event,) = messages.segments("run", "node", claimed, "00-trace")
    assert event.subject == "lineage.run.segment" and event.traceparent == "00-trace"
    read = [segments.segment_from_wire(grown.segment).id for grown in event.message.segments]
    assert read == [segment.id for segment, _ in claimed]
    assert {grown.claim_epoch for grown in event.message.segments} == {3}


def test_large_steps_are_split_below_the_limit_and_lose_nothing():
    claimed = [(segment(i, 9_000), 1) for i in range(40)]
    events = list(messages.segments("run", "node", claimed))
    assert len(events) > 4 and len({event.msg_id for event in events}) == len(events)
    assert all(event.message.ByteSize() <= MAX_MESSAGE_BYTES for event in events)
    ordinals = [grown.segment.ordinal for event in events for grown in event.message.segments]
    assert ordinals == list(range(40))


def test_ids_depend_on_content_and_claim_not_on_order():
    claimed = [(segment(i, 8), 1) for i in range(3)]
    (forwards,) = messages.segments("run", "n", claimed)
    (backwards,) = messages.segments("run", "n", claimed[::-1])
    (other_claim,) = messages.segments("run", "n", [(segment, 2) for segment, _ in claimed])
    assert forwards.msg_id == backwards.msg_id != other_claim.msg_id
    assert forwards.again(1).msg_id not in (forwards.msg_id, forwards.again(2).msg_id)


def test_leaves_and_ends():
    mark = LeafMark(Leaf(b"s" * 32, 5), "stop")
    (message,) = messages.leaf("run", TREE_ID, 4, mark, "12").message.leaves
    assert (message.completion, message.reason, message.claim_epoch) == ("12", "stop", 4)
    assert segments.leaf_from_wire(message.leaf) == mark.leaf
    end = messages.grown("run", "node", TREE_ID, 4, [mark.leaf])
    assert end.subject == "lineage.run.grown"
    assert end.msg_id != messages.grown("run", "node", TREE_ID, 5, []).msg_id


def test_events_merge_into_few_messages_segments_first():
    leaves = [leaf(number) for number in range(100)]
    end, other = (messages.grown("run", "node", tree * 32, 1, []) for tree in (b"t", b"u"))
    (claimed,) = messages.segments("run", "node", [(segment(0, 8), 1)])
    sends = messages.merged([*leaves[:50], end, *leaves[50:], other, claimed])
    kinds = [send.subject.split(".")[-1] for send, _ in sends]
    assert kinds == ["segment", "leaf", "leaf", "grown"]
    assert [len(parts) for _, parts in sends] == [1, 64, 36, 2]
    assert [tree.tree_id[:1] for tree in sends[3][0].message.trees] == [b"t", b"u"]
    numbers = [part.leaf.segment[-1] for send, _ in sends[1:3] for part in send.message.leaves]
    assert numbers == list(range(100))
    assert len({send.msg_id for send, _ in sends}) == 4
    long = [leaf(number, "x" * 200_000) for number in range(5)]
    assert [len(parts) for _, parts in messages.merged(long)] == [2, 2, 1]
    assert all(send.message.ByteSize() < 2**20 for send, _ in messages.merged(long))


def test_segments_merge_into_one_message_up_to_the_limit():
    ((send, parts),) = messages.merged([grew(number, 8) for number in range(3)])
    assert [grown.segment.ordinal for grown in send.message.segments] == [0, 1, 2]
    assert [grown.plan.number for grown in send.message.plans] == [0, 1, 2]
    assert (send.message.run_id, send.message.node_id) == ("run", "node")
    assert (send.traceparent, len(parts)) == ("", 3)
    sends = messages.merged([grew(number, 20_000) for number in range(6)])
    assert len(sends) > 1
    assert all(send.message.ByteSize() <= MAX_MESSAGE_BYTES for send, _ in sends)
    ordinals = [grown.segment.ordinal for send, _ in sends for grown in send.message.segments]
    assert ordinals == list(range(6))
    assert len({send.msg_id for send, _ in sends}) == len(sends)
