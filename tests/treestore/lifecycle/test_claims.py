"""Claims: epochs, attempts without progress, returns, tickets."""

import asyncio

import pytest

from banyan.errors import NotFound, Refused
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.rollout.clients.treestore import GrpcStore
from services.treestore.control import runs
from services.treestore.lifecycle import claims
from services.treestore.loops import deadlines
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.rows import DROPPED, GROWING
from tests.treestore.client import Store
from tests.treestore.forge import World
from tests.treestore.work import statements


def _tree(world: World):
    return world.one(schema.trees)


def _look(world: World) -> None:
    if world.database.query(lambda c: deadlines.is_due(c, world.now(), world.settings)):
        world.database.transact(lambda c: deadlines.reconcile(c, world.now(), world.settings))


def test_each_claim_has_the_next_epoch_and_fences_the_one_before(world: World) -> None:
    spec = world.forge.spec()
    assert world.open(spec) == 1
    assert world.claim(spec.tree_id, "node-2") == 2
    with pytest.raises(Refused) as refused:
        world.database.transact(
            lambda c: claims.renew(c, spec.tree_id, 1, world.now(), world.settings)
        )
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
    assert _claim_after_silence(world, spec.tree_id) == 2
    assert _claim_after_silence(world, spec.tree_id) == 3
    world.ingest(world.forge.segments(world.forge.child(root), epoch=3))
    assert _claim_after_silence(world, spec.tree_id) == 4
    assert _claim_after_silence(world, spec.tree_id) == 5
    assert _claim_after_silence(world, spec.tree_id) == 0
    tree = _tree(world)
    assert (tree.state, tree.reason) == (DROPPED, "NO_PROGRESS")
    (closed,) = events_pb2.TreesClosed.FromString(world.rows(schema.outbox)[-1].payload).trees
    assert closed.state == DROPPED and closed.reason == "NO_PROGRESS" and closed.group_closed
    assert world.one(schema.groups).state == 4
    assert world.claim(spec.tree_id) == 0 and len(world.rows(schema.segments)) == 2


def _claim_after_silence(world: World, tree_id: bytes) -> int:
    world.silence()
    return world.claim(tree_id)


def test_nobody_drops_a_tree_that_another_keeps_by_claiming_it(world: World) -> None:
    spec = world.forge.spec(max_claims=2)
    world.open(spec)
    for epoch in range(2, 30):  # some 5 s apart, as a node renews
        assert world.claim(spec.tree_id, "thief" if epoch % 2 == 0 else "node-1") == epoch
        world.now.ms += world.settings.claim_ms // 2 - 1
    assert (_tree(world).state, _tree(world).idle_claims) == (GROWING, 1)
    world.ingest(world.forge.segments(world.forge.root(spec), epoch=29))
    assert _tree(world).idle_claims == 0


@pytest.mark.parametrize("ticket", [0, 1, 3, 2**32 - 1])
def test_a_claim_with_any_ticket_but_the_newest_claims_nothing(world: World, ticket: int) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    world.now.ms += world.settings.requeue_ms
    _look(world)
    assert world.claim(spec.tree_id, "thief", ticket=ticket) == 0
    assert (_tree(world).claim_epoch, _tree(world).claim_node, _tree(world).idle_claims) == (
        0,
        "",
        0,
    )
    assert world.claim(spec.tree_id, ticket=2) == 1


def test_what_comes_for_a_dropped_tree_is_refused(world: World) -> None:
    spec = world.forge.spec(max_claims=1)
    world.open(spec)
    assert _claim_after_silence(world, spec.tree_id) == 0
    world.ingest(world.forge.segments(world.forge.root(spec)), world.forge.grown(spec.tree_id))
    assert [r.reason for r in world.rows(schema.refused)] == ["TREE_DROPPED"] * 2
    assert not world.rows(schema.segments)


def test_a_tree_that_is_over_is_not_claimed(world: World) -> None:
    spec = world.forge.spec()
    world.live(spec)
    assert world.claim(spec.tree_id) == 0
    with pytest.raises(Refused) as refused:
        world.database.transact(
            lambda c: claims.renew(c, spec.tree_id, 1, world.now(), world.settings)
        )
    assert refused.value.reason == "NOT_GROWING"


def test_a_return_is_no_attempt_and_queues_the_tree_at_once(world: World) -> None:
    spec = world.forge.spec(max_claims=1)
    epoch = world.open(spec)
    for _ in range(5):
        world.return_tree(spec.tree_id, epoch, "drain")
        world.return_tree(spec.tree_id, epoch, "drain")  # a repetition
        epoch = world.claim(spec.tree_id, "node-2")
        assert epoch
    assert world.tickets() == [1, 2, 3, 4, 5, 6]
    assert _tree(world).state == GROWING
    with pytest.raises(Refused):
        world.return_tree(spec.tree_id, 1, "drain")


def test_the_trace_of_the_first_claim_stays(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    for node, trace in (("node-1", "first"), ("node-2", "second")):
        world.database.transact(
            lambda c, node=node, trace=trace: claims.claim(
                c,
                spec.tree_id,
                node=node,
                ticket=1,
                now_ms=world.now(),
                settings=world.settings,
                traceparent=trace,
            )
        )
    assert _tree(world).claim_traceparent == "first"


def test_a_tree_that_no_node_can_grow_is_dropped_at_its_first_return(world: World) -> None:
    fine, bad = world.forge.spec(0), world.forge.spec(1)
    for spec in (fine, bad):
        world.open(spec)
    world.return_tree(fine.tree_id, 1, "UNABLE: a path of 9 tokens cannot fit here")
    world.return_tree(bad.tree_id, 1, "UNUSABLE: its spec is no JSON")
    assert world.one(schema.trees, tree_id=fine.tree_id).state == GROWING
    tree = world.one(schema.trees, tree_id=bad.tree_id)
    assert (tree.state, tree.reason) == (DROPPED, "UNUSABLE: its spec is no JSON")


def test_a_joined_node_cannot_drop_a_tree_by_calling_it_unusable(world: World) -> None:
    spec = world.forge.spec()
    world.return_tree(spec.tree_id, world.open(spec), "UNUSABLE: so it says", joined=True)
    assert _tree(world).state == GROWING and world.tickets() == [1, 2]


def test_segments_of_a_returned_claim_still_count_until_the_next(world: World) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    world.return_tree(spec.tree_id, epoch, "drain")
    world.ingest(world.forge.segments(world.forge.root(spec), epoch=epoch))
    assert len(world.rows(schema.segments)) == 1
    assert world.claim(spec.tree_id) == epoch + 1


def test_a_tree_that_nobody_can_grow_is_queued_slower_and_dropped_in_the_end(make_world) -> None:
    world = make_world(settings=Settings(max_returns=3)).start()
    spec = world.forge.spec()
    epoch = world.open(spec)
    for expected in ([1, 2], [1, 2], [1, 2]):
        world.return_tree(spec.tree_id, epoch, "policy")
        assert world.tickets() == expected or len(world.tickets()) >= 2
        epoch = world.claim(spec.tree_id)
    world.return_tree(spec.tree_id, epoch, "policy")
    assert (_tree(world).state, _tree(world).reason) == (DROPPED, "RETURNED: policy")


def test_a_second_return_waits_a_little(world: World) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    world.return_tree(spec.tree_id, epoch, "policy")
    epoch = world.claim(spec.tree_id)
    world.return_tree(spec.tree_id, epoch, "policy")
    _look(world)
    assert world.tickets() == [1, 2]
    world.now.ms += 500
    _look(world)
    assert world.tickets() == [1, 2, 3]


def test_an_assignment_that_was_replaced_claims_nothing(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    world.now.ms += world.settings.requeue_ms
    _look(world)
    assert world.tickets() == [1, 2]
    assert world.claim(spec.tree_id, ticket=2) == 1
    assert world.claim(spec.tree_id, ticket=1) == 0  # it fences no claim
    assert _tree(world).claim_epoch == 1 and _tree(world).state == GROWING
    assert world.claim(spec.tree_id, ticket=2) == 2  # the broker redelivers the newest


def test_trees_that_nobody_claims_are_queued_again_and_again_but_seldom(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    for seconds in (59, 61, 119, 121):
        world.now.ms = 1_000_000 + seconds * 1000
        _look(world)
    assert world.tickets() == [1, 2]  # the second wait is twice the first
    world.now.ms += 120_000
    _look(world)
    assert world.tickets() == [1, 2, 3]


def test_a_claim_that_progresses_is_left_alone_and_an_expired_one_is_queued(world: World) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    segment = world.forge.root(spec)
    for ordinal in range(5):
        world.now.ms += 50_000
        world.ingest(world.forge.segments(segment, epoch=epoch))
        segment = world.forge.child(segment, ordinal)
        _look(world)
    assert world.tickets() == [1]
    world.now.ms += world.settings.claim_ms + world.settings.requeue_ms
    _look(world)
    assert world.tickets() == [1, 2]
    assert world.claim(spec.tree_id, "node-2", ticket=2) == epoch + 1


def test_trees_of_a_paused_run_wait(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    pause = rs.MoveRunRequest(
        run_id=spec.run_id,
        from_state=rs.RUN_STATE_TRAINING,
        to_state=rs.RUN_STATE_PAUSED,
        gateway_epoch=1,
    )
    world.database.transact(lambda c: runs.move(c, pause, world.now(), world.settings))
    world.now.ms += 10 * world.settings.requeue_ms
    _look(world)
    assert world.tickets() == [1]


@pytest.mark.parametrize("epoch", [2, 7, 2**31])
def test_what_names_a_claim_that_was_never_issued_takes_no_tree(world: World, epoch: int) -> None:
    spec = world.forge.spec()
    assert world.open(spec) == 1
    root = world.forge.root(spec)
    world.ingest(world.forge.segments(root))
    stolen = world.forge.child(root, 1)
    world.ingest(
        world.forge.segments(stolen, epoch=epoch),
        world.forge.leaf(root, epoch=epoch),
        world.forge.grown(spec.tree_id, root, epoch=epoch),
    )
    assert {r.reason for r in world.rows(schema.refused)} == {"EPOCH_UNKNOWN"} and len(
        world.rows(schema.refused)
    ) == 3
    assert (_tree(world).claim_epoch, _tree(world).state, len(world.rows(schema.segments))) == (
        1,
        GROWING,
        1,
    )
    world.ingest(world.forge.segments(world.forge.child(root, 1)))  # the claim in force stays
    assert len(world.rows(schema.segments)) == 2


def test_a_store_that_is_rebuilt_learns_epochs_from_the_log(make_world) -> None:
    world = make_world(settings=Settings(rebuild=True)).start()
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    root = world.forge.root(spec)
    world.ingest(world.forge.segments(root, epoch=2**31))
    assert world.one(schema.dead).reason.startswith("EPOCH_UNKNOWN")
    world.ingest(world.forge.segments(root, epoch=7))
    assert world.claim(spec.tree_id) == 8


def test_the_broker_decides_before_the_store_does() -> None:
    """A claim outlives the broker's wait, and both outlive two renewals that were lost."""
    from services.chassis.messaging import assignments
    from services.rollout.node import lease_renewal

    assert Settings().claim_ms >= 2 * assignments.ACK_WAIT_S * 1000
    assert 3 * lease_renewal.EVERY_S <= assignments.ACK_WAIT_S


def test_renewals_are_one_transaction_with_an_outcome_each(world: World) -> None:
    specs = [world.forge.spec(ordinal) for ordinal in range(5)]
    world.ingest(world.forge.all_opened(specs))
    epochs = [world.claim(spec.tree_id) for spec in specs]
    world.claim(specs[1].tree_id)  # a newer claim
    world.return_tree(specs[2].tree_id, 1, "drain")
    pairs = [
        *((spec.tree_id, epoch) for spec, epoch in zip(specs, epochs, strict=True)),
        (bytes(32), 1),
    ]
    world.now.ms += 5_000
    with statements() as executed:
        errors = world.database.transact(
            lambda c: claims.renew_all(c, pairs, "", world.now(), world.settings)
        )
    assert [e.reason if e else "" for e in errors] == [
        "",
        "STALE_EPOCH",
        "STALE_EPOCH",
        "",
        "",
        "NOT_FOUND",
    ]
    assert len([s for s in executed if "trees" in s]) == 2, (
        "all are read together, and written together"
    )
    due = world.now() + world.settings.claim_ms
    renewed = [world.one(schema.trees, tree_id=spec.tree_id).claim_due_ms == due for spec in specs]
    assert renewed == [True, False, False, True, True]
    errors = world.database.transact(
        lambda c: claims.renew_all(c, pairs[:1], "another", world.now(), world.settings)
    )
    assert [e.reason if e else "" for e in errors] == ["OTHER_RUN"]


async def test_a_node_renews_all_its_claims_in_two_calls(store: Store) -> None:
    specs = [store.forge.spec(ordinal) for ordinal in range(40)]
    await store.publish(store.forge.all_opened(specs))
    epochs = [await store.claim(spec.tree_id) for spec in specs]
    node = GrpcStore(store.channel, store.forge.run_id, "node-1")
    with statements() as executed:
        await asyncio.gather(
            *(node.renew(s.tree_id, e) for s, e in zip(specs, epochs, strict=True))
        )
        with pytest.raises(Refused, match="is over"):
            await node.renew(specs[0].tree_id, epochs[0] + 1)
    assert len([s for s in executed if s.startswith("UPDATE trees")]) == 1, (
        "those that ask at once go together"
    )
