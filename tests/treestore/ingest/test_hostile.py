"""Hostile input: meaningless bytes, text that a database refuses, numbers that collide."""

import pytest

from banyan.errors import Refused
from banyan.v1 import events_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import runs
from services.treestore.ingest.item import Item
from services.treestore.lifecycle import claims, waits
from services.treestore.loops.dead_letters import DeadLetters
from services.treestore.queries import transcripts
from services.treestore.storage import schema
from services.treestore.unit_of_work.context import Context
from services.treestore.unit_of_work.rows import CLOSED, DROPPED
from tests.treestore.forge import World
from tests.treestore.loops.test_consumer import Silent, Told


def test_a_model_may_sample_a_zero_byte(world: World) -> None:
    """PostgreSQL takes no NUL in a text; the tokens are the truth, and the text is for people and
    scorers.
    """
    spec = world.forge.spec()
    epoch = world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root, text="4\x002")
    world.ingest(
        world.forge.segments(root, leaf, epoch=epoch),
        world.forge.leaf(leaf, epoch=epoch, completion="4\x002"),
    )
    world.ingest(
        world.forge.grown(spec.tree_id, leaf, epoch=epoch),
        world.forge.score(leaf, None, reason="saw \x00"),
    )
    assert not world.rows(schema.dead) and world.one(schema.trees).state == CLOSED
    key = ts.LeafKey(tree_id=spec.tree_id, leaf={"segment": leaf.id, "end": len(leaf)})
    assert world.database.query(lambda c: transcripts.read(c, [key]))[0].completion == "4\ufffd2"
    world.ingest(world.forge.score(leaf, None, reason="saw \x00"))
    assert not world.rows(schema.late)


@pytest.mark.parametrize(
    ("subject", "data"),
    [
        ("dead.LINEAGE", b"\xff\xff\xff"),
        (
            "dead.LINEAGE",
            events_pb2.DeadLetter(stream="S", service="x", sequence=1 << 63).SerializeToString(),
        ),
        ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c", b"[1]"),
        ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c", b'{"stream_seq": null}'),
        ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c", b"nothing"),
    ],
)
async def test_a_letter_that_cannot_be_kept_stops_nobody(
    world: World, subject: str, data: bytes
) -> None:
    good = events_pb2.DeadLetter(stream="LINEAGE", service="verifier", sequence=5, reason="why")
    deliveries = [
        Told(Item(subject, data, 1)),
        Told(Item("dead.LINEAGE", good.SerializeToString(), 2)),
    ]
    letters = DeadLetters(Context(world.database, world.settings, world.now), Silent())
    assert await letters.store(deliveries)
    assert all(t.acked for t in deliveries) and world.one(schema.dead).service == "verifier"


def test_each_bad_event_of_a_message_has_its_letter(world: World) -> None:
    """Two segments of one message wait for one parent, and turn out wrong when it comes."""
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    beyond = [world.forge.child(root, ordinal, fork=99) for ordinal in range(2)]
    world.ingest(world.forge.segments(*beyond))
    world.ingest(world.forge.segments(root))
    assert [row.reason.split(":")[0] for row in world.rows(schema.dead)] == ["BAD_FORK"] * 2


def test_sequences_of_a_new_log_hide_no_letter(world: World) -> None:
    """A log that was wiped counts from one again."""
    bad = [Item(f"lineage.{world.forge.run_id}.leaf", bytes([255, n]), 7) for n in range(2)]
    for item in (*bad, *bad):
        world.ingest(item)
    assert len(world.rows(schema.dead)) == 2


def test_a_parked_event_is_not_taken_for_a_new_one_of_the_same_number(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    early = world.forge.segments(world.forge.child(root, 0, fork=99))
    world.ingest(early)
    world.forge.sequence = early.sequence - 1  # the log was wiped
    world.ingest(world.forge.segments(root))
    letter = events_pb2.DeadLetter.FromString(world.one(schema.dead).letter)
    assert events_pb2.SegmentsGrown.FromString(letter.payload).segments[0].segment.parent == root.id


def test_a_tree_that_was_handed_back_is_kept_by_nobody(world: World) -> None:
    """The node's last renewal and events may come after ReturnTree; they must not put off the next
    claim.
    """
    spec = world.forge.spec()
    root = world.forge.root(spec)
    world.ingest(world.forge.opened(spec))
    for _ in range(2):  # the first return is queued at once, later ones after a while
        epoch = world.claim(spec.tree_id)
        world.return_tree(spec.tree_id, epoch, "policy")
    due = world.one(schema.trees).growth_due_ms
    with pytest.raises(Refused, match="handed back"):
        world.database.transact(
            lambda c: claims.renew(c, spec.tree_id, epoch, world.now(), world.settings)
        )
    world.ingest(world.forge.segments(root, epoch=epoch))
    tree = world.one(schema.trees)
    assert (tree.segments, tree.growth_due_ms, tree.claim_due_ms) == (1, due, 0)


def test_whoever_waits_for_a_dropped_tree_is_told(world: World) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    end = rs_cancel(world)
    world.database.transact(lambda c: runs.move(c, end, world.now(), world.settings))
    assert world.one(schema.trees).state == DROPPED
    request = ts.AwaitIngestedRequest(tree_id=spec.tree_id, epoch=epoch, grown=True)
    with pytest.raises(Refused) as refused:
        world.database.query(lambda c: waits.ingested(c, request))
    assert refused.value.reason == "NOT_GROWING"


def rs_cancel(world: World):
    from banyan.v1 import runstore_service_pb2 as rs

    return rs.MoveRunRequest(
        run_id=world.forge.run_id,
        from_state=rs.RUN_STATE_TRAINING,
        to_state=rs.RUN_STATE_CANCELLED,
        gateway_epoch=1,
    )
