"""Deadlines belong to the store, and outlive its restarts."""

from types import SimpleNamespace

import pytest

from banyan.v1 import events_pb2, tree_pb2
from services.treestore.control import progress
from services.treestore.loops import deadlines
from services.treestore.queries import trees
from services.treestore.storage import clock, schema
from services.treestore.storage.clock import StoreClock
from services.treestore.unit_of_work.rows import CLOSED, SCORING
from tests.treestore.forge import World


def _look(world: World) -> None:
    if world.database.query(lambda c: deadlines.is_due(c, world.now(), world.settings)):
        world.database.transact(lambda c: deadlines.reconcile(c, world.now(), world.settings))


def _grown(world: World, ordinal: int = 0) -> tuple[tree_pb2.TreeSpec, list]:
    spec = world.forge.spec(ordinal)
    epoch = world.open(spec)
    items = world.forge.life(spec, epoch=epoch)
    world.ingest(*items[:-2])
    return spec, items[-2:]


def test_a_leaf_without_a_score_becomes_unscorable_at_its_deadline(world: World) -> None:
    spec, scores = _grown(world)
    world.ingest(scores[0])
    world.now.ms += spec.score_deadline_ms - 1
    _look(world)
    assert world.one(schema.trees).state == SCORING
    world.now.ms += 1
    _look(world)
    tree = world.database.query(lambda c: trees.read(c, [spec.tree_id]))[0]
    assert tree.state == tree_pb2.TREE_STATE_CLOSED
    assert sorted((s.score.state, s.score.reason) for s in tree.scores) == [
        (1, ""),
        (2, "DEADLINE"),
    ]
    samples = world.database.query(
        lambda c: progress.read(c, world.forge.run_id, world.now())
    ).samples
    assert (samples.scored, samples.unscorable, samples.leaves) == (1, 1, 2)
    world.ingest(scores[1])  # too late, and kept
    assert len(world.rows(schema.late)) == 1 and len(world.rows(schema.scores)) == 2


def test_leaves_that_are_owed_a_score_are_said_again_at_half_time(world: World) -> None:
    spec, scores = _grown(world)
    world.ingest(scores[0])
    world.database.transact(lambda c: c.execute(schema.outbox.delete()))
    world.now.ms += spec.score_deadline_ms // 2
    _look(world)
    _look(world)
    reminder = world.one(schema.outbox)
    leaves = events_pb2.LeavesFinished.FromString(reminder.payload)
    (owed,) = events_pb2.LeavesScored.FromString(scores[1].data).scores
    assert reminder.subject.endswith(".leaf") and [leaf.leaf for leaf in leaves.leaves] == [
        owed.scored.leaf
    ]
    world.ingest(world.forge.item("leaf", leaves))  # our own reminders, from the log: nothing new
    world.ingest(scores[1])
    assert world.one(schema.trees).state == CLOSED


def test_time_without_a_store_does_not_count(world: World) -> None:
    spec, _scores = _grown(world)
    world.open(world.forge.spec(1))
    world.database.transact(lambda c: deadlines.record_alive(c, world.now()))
    world.now.ms += 3_600_000
    assert world.database.transact(lambda c: deadlines.catch_up(c, world.now())) == 3_600_000
    _look(world)
    assert world.one(schema.trees, tree_id=spec.tree_id).state == SCORING
    assert (
        world.one(schema.trees, tree_id=world.forge.spec(1).tree_id).claim_due_ms
        == world.now.ms + world.settings.claim_ms
    )
    world.now.ms += spec.score_deadline_ms
    _look(world)
    assert world.one(schema.trees, tree_id=spec.tree_id).state == CLOSED


def test_an_event_that_waited_in_vain_is_given_up(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    orphan = world.forge.child(world.forge.child(root, 5), 0)
    world.ingest(world.forge.segments(root), world.forge.segments(orphan))
    world.now.ms += world.settings.park_ms + 1
    _look(world)
    assert not world.rows(schema.parked)
    letter = events_pb2.DeadLetter.FromString(world.one(schema.dead).letter)
    assert letter.reason.startswith("PREREQUISITE_MISSING") and letter.subject.endswith(".segment")
    # The letter can be replayed: it is a whole message.
    world.ingest(world.forge.segments(world.forge.child(root, 5)))
    replayed = events_pb2.SegmentsGrown.FromString(letter.payload)
    world.ingest(world.forge.item("segment", replayed))
    assert len(world.rows(schema.segments)) == 3


def test_what_waits_for_a_tree_that_is_over_is_refused_in_the_end(world: World) -> None:
    spec = world.forge.spec()
    world.live(spec)
    world.ingest(
        world.forge.segments(world.forge.child(world.forge.child(world.forge.root(spec), 9)))
    )
    world.now.ms += world.settings.park_ms + 1
    _look(world)
    assert world.one(schema.refused).reason == "TREE_OVER" and not world.rows(schema.dead)


def _said(world: World) -> list[str]:
    rows = world.rows(schema.outbox)
    return sorted(
        r.subject.split(".")[-1] if r.subject.startswith("lineage") else r.subject.split(".")[0]
        for r in rows
    )


def test_a_lost_log_queues_free_trees_and_unscored_leaves_again(world: World) -> None:
    _grown(world, 0)
    growing = world.forge.spec(1)
    epoch = world.open(growing)
    root = world.forge.root(growing)
    leaves = [world.forge.child(root, ordinal) for ordinal in range(3)]
    world.ingest(
        world.forge.segments(root, *leaves, epoch=epoch),
        *(world.forge.leaf(leaf, epoch=epoch) for leaf in leaves[:2]),
        world.forge.score(leaves[0]),
    )
    world.ingest(world.forge.opened(world.forge.spec(2)))
    world.database.transact(lambda c: c.execute(schema.outbox.delete()))
    world.database.transact(lambda c: deadlines.log_lost(c, world.now()))
    _look(world)
    # The claimed tree is left to its node, but its only unscored leaf is published again.
    assert _said(world) == ["growth", "leaf", "leaf"]
    reminders = [
        events_pb2.LeavesFinished.FromString(r.payload)
        for r in world.rows(schema.outbox)
        if r.subject.endswith("leaf")
    ]
    assert sorted(len(message.leaves) for message in reminders) == [1, 2]
    _look(world)
    assert len(world.rows(schema.outbox)) == 3, "said once"


def test_what_a_lost_log_asks_for_is_done_in_parts_and_survives_a_restart(
    world: World, monkeypatch
) -> None:
    monkeypatch.setattr(deadlines, "_BATCH", 2)
    for ordinal in range(5):
        _grown(world, ordinal)
    world.database.transact(lambda c: c.execute(schema.outbox.delete()))
    world.database.transact(lambda c: deadlines.record_alive(c, world.now()))
    world.database.transact(lambda c: deadlines.log_lost(c, world.now()))
    world.database.transact(lambda c: deadlines.catch_up(c, world.now()))  # a kill came in between
    for number in (2, 4, 5, 5):
        _look(world)
        assert len(world.rows(schema.outbox)) == number


def test_an_idle_store_writes_nothing(world: World) -> None:
    assert not world.database.query(lambda c: deadlines.is_due(c, world.now(), world.settings))
    _grown(world)
    assert not world.database.query(lambda c: deadlines.is_due(c, world.now(), world.settings))


def test_the_clock_never_goes_back() -> None:
    ahead = StoreClock(alive_ms=10**14)
    assert ahead() >= 10**14 and ahead() <= ahead()


@pytest.mark.parametrize("wall_s", [1_000.0, 9_000.0])
def test_a_wall_clock_that_is_set_while_the_store_runs_moves_no_deadline(
    monkeypatch, wall_s: float
) -> None:
    now = SimpleNamespace(wall=5_000.0, monotonic=70.0)
    monkeypatch.setattr(
        clock, "time", SimpleNamespace(time=lambda: now.wall, monotonic=lambda: now.monotonic)
    )
    store = clock.StoreClock()
    assert store() == 5_000_000
    now.wall, now.monotonic = wall_s, 70.25
    assert store() == 5_000_250
