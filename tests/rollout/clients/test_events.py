"""Events: split below the limit, ids that are stable for the same content and differ between claims."""

import numpy as np

from banyan.plugins import LeafMark
from banyan.segment import Kind, Sampling, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.wire import segments
from services.chassis.messaging.bus import MAX_MESSAGE_BYTES
from services.rollout.clients import messages


def segment(ordinal, tokens):
    return Segment(
        bytes(32),
        b"p" * 32,
        3,
        ordinal,
        Kind.POLICY,
        np.arange(tokens),
        -np.ones(tokens),
        policy=b"w",
        sampling=Sampling(),
    )


def test_segments_of_a_step_are_one_message():
    made = [(segment(i, 8), 3) for i in range(64)]
    (event,) = messages.segments("run", "node", made, "00-trace")
    assert event.subject == "lineage.run.segment" and event.traceparent == "00-trace"
    assert [segments.segment_from_wire(g.segment).id for g in event.message.segments] == [
        s.id for s, _ in made
    ]
    assert {g.claim_epoch for g in event.message.segments} == {3}


def test_large_steps_are_split_below_the_limit_and_lose_nothing():
    made = [(segment(i, 9_000), 1) for i in range(40)]
    out = list(messages.segments("run", "node", made))
    assert len(out) > 4 and len({e.msg_id for e in out}) == len(out)
    assert all(e.message.ByteSize() <= MAX_MESSAGE_BYTES for e in out)
    assert [g.segment.ordinal for e in out for g in e.message.segments] == list(range(40))


def test_ids_depend_on_content_and_claim_not_on_order():
    made = [(segment(i, 8), 1) for i in range(3)]
    (one,), (two,) = messages.segments("run", "n", made), messages.segments("run", "n", made[::-1])
    (other_claim,) = messages.segments("run", "n", [(s, 2) for s, _ in made])
    assert one.msg_id == two.msg_id != other_claim.msg_id
    assert one.again(1).msg_id not in (one.msg_id, one.again(2).msg_id)


def test_leaves_and_ends():
    mark = LeafMark(Leaf(b"s" * 32, 5), "stop")
    leaf = messages.leaf("run", b"t" * 32, 4, mark, "12")
    (said,) = leaf.message.leaves
    assert (said.completion, said.reason, said.claim_epoch) == ("12", "stop", 4)
    assert segments.leaf_from_wire(said.leaf) == mark.leaf
    end = messages.grown("run", "node", b"t" * 32, 4, [mark.leaf])
    assert (
        end.subject == "lineage.run.grown"
        and end.msg_id != messages.grown("run", "node", b"t" * 32, 5, []).msg_id
    )


def test_what_waits_together_goes_in_few_messages_segments_first():
    def ended(n: int, text: str = ""):
        mark = LeafMark(Leaf(n.to_bytes(32, "big"), 3), "stop")
        return messages.leaf("run", b"t" * 32, 1, mark, text)

    leaves = [ended(n) for n in range(100)]
    end, other = (messages.grown("run", "node", tree * 32, 1, []) for tree in (b"t", b"u"))
    (made,) = messages.segments("run", "node", [(segment(0, 8), 1)])
    sends = messages.merged([*leaves[:50], end, *leaves[50:], other, made])
    assert [send.subject.split(".")[-1] for send, _ in sends] == [
        "segment",
        "leaf",
        "leaf",
        "grown",
    ]
    assert [len(parts) for _, parts in sends] == [1, 64, 36, 2]
    assert [tree.tree_id[:1] for tree in sends[3][0].message.trees] == [b"t", b"u"]
    assert [one.leaf.segment[-1] for send, _ in sends[1:3] for one in send.message.leaves] == list(
        range(100)
    )
    assert len({send.msg_id for send, _ in sends}) == 4
    long = [ended(n, "x" * 200_000) for n in range(5)]
    assert [len(parts) for _, parts in messages.merged(long)] == [2, 2, 1]
    assert all(send.message.ByteSize() < 2**20 for send, _ in messages.merged(long))


def test_segments_that_wait_together_are_one_message_up_to_the_limit():
    def grew(n, tokens):
        plan = events_pb2.GrownPlan(
            tree_id=bytes(32), plan=tree_pb2.PlanRecord(claim_epoch=1, number=n)
        )
        return next(messages.segments("run", "node", [(segment(n, tokens), 1)], f"00-{n}", [plan]))

    ((send, parts),) = messages.merged([grew(n, 8) for n in range(3)])
    assert (
        [g.segment.ordinal for g in send.message.segments]
        == [0, 1, 2]
        == [p.plan.number for p in send.message.plans]
    )
    assert (send.message.run_id, send.message.node_id, send.traceparent, len(parts)) == (
        "run",
        "node",
        "",
        3,
    )
    sends = messages.merged([grew(n, 20_000) for n in range(6)])
    assert len(sends) > 1 and all(send.message.ByteSize() <= MAX_MESSAGE_BYTES for send, _ in sends)
    assert [g.segment.ordinal for send, _ in sends for g in send.message.segments] == list(range(6))
    assert len({send.msg_id for send, _ in sends}) == len(sends)
