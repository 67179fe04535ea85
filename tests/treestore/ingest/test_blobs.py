"""Segments that are too large for a message go by digest, and plans go with the segments that
caused them.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from banyan.digest import blake
from banyan.errors import InvalidInput, NotFound, Refused, TemporaryError
from banyan.segment import Segment
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.segments import segment_to_wire
from services.treestore.control import runs
from services.treestore.ingest import blobs
from services.treestore.ingest.item import Item
from services.treestore.queries import trees
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from tests.treestore.forge import World
from tests.treestore.ingest.test_hostile import rs_cancel


def _head(segment: Segment, epoch: int = 1) -> tuple[ts.PutBlobRequest, bytes]:
    data = segment_to_wire(segment).SerializeToString()
    return ts.PutBlobRequest(
        tree_id=segment.tree_id, epoch=epoch, digest=blake(data), size=len(data)
    ), data


def _put(world: World, segment: Segment, epoch: int = 1) -> bytes:
    head, data = _head(segment, epoch)
    world.database.transact(lambda c: blobs.put(c, head, data, world.now(), world.settings))
    return head.digest


def _stub(world: World, segment: Segment, blob: bytes, epoch: int = 1, **more: object) -> Item:
    named = tree_pb2.Segment(id=segment.id, tree_id=segment.tree_id)
    grown = events_pb2.GrownSegment(segment=named, claim_epoch=epoch, blob=blob)
    return world.forge.item(
        "segment", events_pb2.SegmentsGrown(run_id=world.forge.run_id, segments=[grown])
    )


def _begun(world: World) -> tuple[tree_pb2.TreeSpec, Segment, Segment]:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    return spec, root, world.forge.child(root)


def test_a_segment_in_a_blob_is_a_segment_and_the_blob_goes(world: World) -> None:
    spec, root, large = _begun(world)
    digest = _put(world, large)
    assert _put(world, large) == digest and len(world.rows(schema.blobs)) == 1
    item = _stub(world, large, digest)
    world.ingest(world.forge.segments(root), item)
    tree = world.database.query(lambda c: trees.read(c, [spec.tree_id]))[0]
    assert tree.segments[1] == segment_to_wire(large) and not world.rows(schema.blobs)
    world.ingest(item)  # redelivered, after the blob is gone
    assert not world.rows(schema.dead) and not world.rows(schema.refused)


def test_a_segment_in_a_blob_may_come_before_its_parent(world: World) -> None:
    _spec, root, large = _begun(world)
    item = _stub(world, large, _put(world, large))
    world.ingest(item)
    world.ingest(item)
    assert len(world.rows(schema.parked)) == 1 and not world.rows(schema.dead)
    world.ingest(world.forge.segments(root))
    assert len(world.rows(schema.segments)) == 2 and not world.rows(schema.blobs)


def test_a_refused_segment_in_a_blob_is_refused_once(world: World) -> None:
    _spec, root, large = _begun(world)
    winner = world.forge.child(root, length=5)
    item = _stub(world, large, _put(world, large))
    world.ingest(world.forge.segments(root, winner))
    world.ingest(item)
    world.ingest(item)
    assert world.one(schema.refused).reason == "ORDINAL_TAKEN" and not world.rows(schema.dead)


def test_a_blob_that_nobody_put_or_that_holds_something_else_is_a_dead_letter(world: World) -> None:
    _spec, root, large = _begun(world)
    other = _put(world, world.forge.child(root, 7))
    world.ingest(
        _stub(world, large, b"d" * 32), _stub(world, large, other), world.forge.segments(root)
    )
    assert [row.reason.split(":")[0] for row in world.rows(schema.dead)] == [
        "BLOB_MISSING",
        f"blob {other.hex()[:12]} holds another segment than the message says",
    ]
    assert len(world.rows(schema.segments)) == 1
    world.ingest(
        _stub(world, large, _put(world, large))
    )  # the node asks for the missing segments, and publishes them again
    assert len(world.rows(schema.segments)) == 2


def test_blobs_go_with_their_tree_and_come_only_under_a_claim_in_force(world: World) -> None:
    _spec, _root, large = _begun(world)
    _put(world, large)
    with pytest.raises(Refused, match="not in force"):
        _put(world, large, epoch=2)
    with pytest.raises(NotFound):
        _put(world, world.forge.child(world.forge.root(world.forge.spec(5))))
    world.database.transact(lambda c: runs.move(c, rs_cancel(world), world.now(), world.settings))
    assert not world.rows(schema.blobs)
    with pytest.raises(Refused, match="grows no more"):
        _put(world, large)


def test_a_tree_has_room_for_few_blobs_that_wait(world: World) -> None:
    _spec, root, _ = _begun(world)
    world.settings = Settings(blob_bytes=400)
    with pytest.raises(TemporaryError) as full:
        for ordinal in range(9):
            _put(world, world.forge.child(root, ordinal))
    assert full.value.reason == "BLOBS_WAIT" and 1 < len(world.rows(schema.blobs)) < 9


async def _pieces(*pieces: ts.PutBlobRequest) -> AsyncIterator[ts.PutBlobRequest]:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize(
    ("change", "rest", "wrong"),
    [
        ({}, b"", "ended after"),
        ({}, b"hell0", "ended after"),
        ({}, b"hello and more", "more than"),
        ({"size": 1 << 40}, b"hello", "over the limit"),
        ({"digest": b"short"}, b"hello", "digest of 32"),
    ],
)
async def test_an_upload_that_is_not_what_it_says_is_refused(
    change: dict, rest: bytes, wrong: str
) -> None:
    head = {"tree_id": b"t" * 32, "epoch": 1, "digest": blake(b"hello"), "size": 5, **change}
    pieces = ts.PutBlobRequest(**head), ts.PutBlobRequest(chunk=rest)
    with pytest.raises(InvalidInput, match=wrong):
        await blobs.receive(_pieces(*pieces), Settings())
    good = ts.PutBlobRequest(**{**head, "size": 5, "digest": blake(b"hello")}, chunk=b"he")
    assert (await blobs.receive(_pieces(good, ts.PutBlobRequest(chunk=b"llo")), Settings()))[
        1
    ] == b"hello"


def test_plans_are_stored_once_and_come_only_when_asked_for(world: World) -> None:
    spec, root, _ = _begun(world)

    def planned(number: int, epoch: int = 1, padding: int = 0) -> Item:
        plan = tree_pb2.PlanRecord(
            claim_epoch=epoch, number=number, view_digest=b"v" * (32 + padding)
        )
        grown = events_pb2.GrownPlan(tree_id=spec.tree_id, plan=plan)
        return world.forge.item(
            "segment", events_pb2.SegmentsGrown(run_id=world.forge.run_id, plans=[grown])
        )

    first, second = planned(0), planned(1)
    world.ingest(second, first, first, world.forge.segments(root))
    world.ingest(first, planned(2, padding=1 << 16))

    def read(plans: bool) -> list[tree_pb2.PlanRecord]:
        [tree] = world.database.query(lambda c: trees.read(c, [spec.tree_id], plans))
        return list(tree.plans)

    assert [plan.number for plan in read(True)] == [0, 1] and not read(False)
    assert "bytes at most" in world.one(schema.dead).reason
    assert world.claim(spec.tree_id, "node-2") == 2
    world.ingest(planned(3, epoch=1), planned(0, epoch=2))
    assert [(p.claim_epoch, p.number) for p in read(True)] == [(1, 0), (1, 1), (2, 0)]
    assert world.one(schema.refused).reason == "STALE_EPOCH"
    early = world.forge.spec(3)  # its opening comes again, to a store that is rebuilt
    world.settings = replace(world.settings, rebuild=True)
    plan = events_pb2.GrownPlan(tree_id=early.tree_id, plan=tree_pb2.PlanRecord(claim_epoch=1))
    world.ingest(
        world.forge.item(
            "segment", events_pb2.SegmentsGrown(run_id=world.forge.run_id, plans=[plan])
        )
    )
    world.ingest(world.forge.opened(early))
    assert len(world.rows(schema.plans, tree_id=early.tree_id)) == 1 and not world.rows(
        schema.parked
    )
