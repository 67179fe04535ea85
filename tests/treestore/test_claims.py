"""Claims: epochs, attempts without progress, returns, tickets (PROTOCOL 3)."""

import pytest

from banyan.errors import NotFound, Refused
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore import claims, deadlines, runs, schema
from services.treestore.rows import DROPPED, GROWING
from services.treestore.settings import Settings
from tests.treestore.forge import World


def _tree(world: World):
    return world.one(schema.trees)


def _tickets(world: World) -> list[int]:
    rows = [r for r in world.rows(schema.outbox) if r.subject.startswith("growth.")]
    return [events_pb2.GrowTree.FromString(r.payload).ticket for r in rows]


def _look(world: World) -> None:
    if world.database.query(lambda c: deadlines.due(c, world.now(), world.settings)):
        world.database.transact(lambda c: deadlines.look(c, world.now(), world.settings))


def test_each_claim_has_the_next_epoch_and_fences_the_one_before(world: World) -> None:
    spec = world.forge.spec()
    assert world.open(spec) == 1
    assert world.claim(spec.tree_id, "node-2") == 2
    with pytest.raises(Refused) as refused:
        world.database.transact(lambda c: claims.renew(c, spec.tree_id, 1, world.now(), world.settings))
    assert refused.value.reason == "STALE_EPOCH"
    world.database.transact(lambda c: claims.renew(c, spec.tree_id, 2, world.now(), world.settings))
    assert (_tree(world).claim_epoch, _tree(world).claim_node) == (2, "node-2")


def test_an_unknown_tree_cannot_be_claimed(world: World) -> None:
    with pytest.raises(NotFound):
        world.claim(b"x" * 32)


def test_claims_without_a_new_segment_drop_the_tree(world: World) -> None:
    spec = world.forge.spec(max_claims=2)
    epoch = world.open(spec)
    root = world.forge.root(spec)
    world.ingest(world.forge.segments(root, epoch=epoch))  # progress: the count starts again
    assert world.claim(spec.tree_id) == 2
    assert world.claim(spec.tree_id) == 3
    world.ingest(world.forge.segments(world.forge.child(root), epoch=3))
    assert world.claim(spec.tree_id) == 4
    assert world.claim(spec.tree_id) == 5
    assert world.claim(spec.tree_id) == 0
    tree = _tree(world)
    assert (tree.state, tree.reason) == (DROPPED, "NO_PROGRESS")
    (closed,) = events_pb2.TreesClosed.FromString(world.rows(schema.outbox)[-1].payload).trees
    assert closed.state == DROPPED and closed.reason == "NO_PROGRESS" and closed.group_closed
    assert world.one(schema.groups).state == 4
    assert world.claim(spec.tree_id) == 0 and len(world.rows(schema.segments)) == 2


def test_what_comes_for_a_dropped_tree_is_refused(world: World) -> None:
    spec = world.forge.spec(max_claims=1)
    world.open(spec)
    assert world.claim(spec.tree_id) == 0
    world.ingest(world.forge.segments(world.forge.root(spec)), world.forge.grown(spec.tree_id))
    assert [r.reason for r in world.rows(schema.refused)] == ["TREE_DROPPED"] * 2
    assert not world.rows(schema.segments)


def test_a_tree_that_is_over_is_not_claimed(world: World) -> None:
    spec = world.forge.spec()
    world.live(spec)
    assert world.claim(spec.tree_id) == 0
    with pytest.raises(Refused) as refused:
        world.database.transact(lambda c: claims.renew(c, spec.tree_id, 1, world.now(), world.settings))
    assert refused.value.reason == "NOT_GROWING"


def test_a_return_is_no_attempt_and_queues_the_tree_at_once(world: World) -> None:
    spec = world.forge.spec(max_claims=1)
    epoch = world.open(spec)
    for _ in range(5):
        _hand_back(world, spec.tree_id, epoch, "drain")
        _hand_back(world, spec.tree_id, epoch, "drain")  # the same call again
        epoch = world.claim(spec.tree_id, "node-2")
        assert epoch
    assert _tickets(world) == [1, 2, 3, 4, 5, 6]
    assert _tree(world).state == GROWING
    with pytest.raises(Refused):
        _hand_back(world, spec.tree_id, 1, "drain")


def test_the_trace_of_the_first_claim_stays(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    for node, trace in (("node-1", "first"), ("node-2", "second")):
        world.database.transact(
            lambda c, n=node, t=trace: claims.claim(c, spec.tree_id, n, 0, world.now(), world.settings, t)
        )
    assert world.database.query(lambda c: claims.first_trace(c, spec.tree_id)) == "first"


def test_a_tree_that_no_node_can_grow_is_dropped_at_its_first_return(world: World) -> None:
    fine, bad = world.forge.spec(0), world.forge.spec(1)
    for spec in (fine, bad):
        world.open(spec)
    _hand_back(world, fine.tree_id, 1, "UNABLE: a path of 9 tokens cannot fit here")
    _hand_back(world, bad.tree_id, 1, "UNUSABLE: its spec is no JSON")
    assert world.one(schema.trees, tree_id=fine.tree_id).state == GROWING
    tree = world.one(schema.trees, tree_id=bad.tree_id)
    assert (tree.state, tree.reason) == (DROPPED, "UNUSABLE: its spec is no JSON")


def _hand_back(world: World, tree_id: bytes, epoch: int, reason: str) -> None:
    world.database.transact(lambda c: claims.hand_back(c, tree_id, epoch, reason, world.now(), world.settings))


def test_segments_of_a_returned_claim_still_count_until_the_next(world: World) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    _hand_back(world, spec.tree_id, epoch, "drain")
    world.ingest(world.forge.segments(world.forge.root(spec), epoch=epoch))
    assert len(world.rows(schema.segments)) == 1
    assert world.claim(spec.tree_id) == epoch + 1


def test_a_tree_that_nobody_can_grow_is_queued_slower_and_dropped_in_the_end(make_world) -> None:
    world = make_world(settings=Settings(max_returns=3)).start()
    spec = world.forge.spec()
    epoch = world.open(spec)
    for expected in ([1, 2], [1, 2], [1, 2]):
        _hand_back(world, spec.tree_id, epoch, "policy")
        assert _tickets(world) == expected or len(_tickets(world)) >= 2
        epoch = world.claim(spec.tree_id)
    _hand_back(world, spec.tree_id, epoch, "policy")
    assert (_tree(world).state, _tree(world).reason) == (DROPPED, "RETURNED: policy")


def test_a_second_return_waits_a_little(world: World) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    _hand_back(world, spec.tree_id, epoch, "policy")
    epoch = world.claim(spec.tree_id)
    _hand_back(world, spec.tree_id, epoch, "policy")
    _look(world)
    assert _tickets(world) == [1, 2]
    world.now.ms += 500
    _look(world)
    assert _tickets(world) == [1, 2, 3]


def test_an_assignment_that_was_replaced_claims_nothing(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    world.now.ms += world.settings.requeue_ms
    _look(world)
    assert _tickets(world) == [1, 2]
    assert world.claim(spec.tree_id, ticket=2) == 1
    assert world.claim(spec.tree_id, ticket=1) == 0  # it fences nobody
    assert _tree(world).claim_epoch == 1 and _tree(world).state == GROWING
    assert world.claim(spec.tree_id, ticket=2) == 2  # the broker delivers the newest again


def test_trees_that_nobody_claims_are_queued_again_and_again_but_seldom(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    for seconds in (59, 61, 119, 121):
        world.now.ms = 1_000_000 + seconds * 1000
        _look(world)
    assert _tickets(world) == [1, 2]  # the second wait is twice the first
    world.now.ms += 120_000
    _look(world)
    assert _tickets(world) == [1, 2, 3]


def test_a_claim_that_progresses_is_left_alone_and_an_expired_one_is_queued(world: World) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    segment = world.forge.root(spec)
    for ordinal in range(5):
        world.now.ms += 50_000
        world.ingest(world.forge.segments(segment, epoch=epoch))
        segment = world.forge.child(segment, ordinal)
        _look(world)
    assert _tickets(world) == [1]
    world.now.ms += world.settings.claim_ms + world.settings.requeue_ms
    _look(world)
    assert _tickets(world) == [1, 2]
    assert world.claim(spec.tree_id, "node-2", ticket=2) == epoch + 1


def test_trees_of_a_paused_run_wait(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    pause = rs.MoveRunRequest(
        run_id=spec.run_id, from_state=rs.RUN_STATE_TRAINING, to_state=rs.RUN_STATE_PAUSED, gateway_epoch=1
    )
    world.database.transact(lambda c: runs.move(c, pause, world.now(), world.settings))
    world.now.ms += 10 * world.settings.requeue_ms
    _look(world)
    assert _tickets(world) == [1]


def test_an_epoch_far_ahead_is_an_error_and_one_a_little_ahead_is_learned(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    root = world.forge.root(spec)
    world.ingest(world.forge.segments(root, epoch=2**31))
    assert world.one(schema.dead).reason.startswith("EPOCH_UNKNOWN")
    world.ingest(world.forge.segments(root, epoch=7))
    assert world.claim(spec.tree_id) == 8
