"""Idempotent ingest: repetitions, early events, refusals, dead letters."""

import random

import numpy as np
import pytest

from banyan.segment import Kind, Origin
from banyan.signals import Signals
from banyan.v1 import events_pb2, tree_pb2
from banyan.wire.segments import tree_from_wire
from services.treestore.queries import trees
from services.treestore.storage import schema
from tests.treestore.forge import Forge, World


def _tree(world: World, tree_id: bytes) -> tree_pb2.Tree:
    return world.database.query(lambda c: trees.read(c, [tree_id]))[0]


def _reasons(world: World) -> list[str]:
    return [row.reason for row in world.rows(schema.refused)]


def test_a_tree_grows_is_scored_and_closes(world: World) -> None:
    spec = world.forge.spec()
    world.live(spec)
    tree = _tree(world, spec.tree_id)
    assert tree.state == tree_pb2.TREE_STATE_CLOSED
    assert tree.spec == spec
    assert len(tree.segments) == 4 and len(tree.leaves) == 2 and len(tree.scores) == 2
    assert tree.segments[0].kind == tree_pb2.SEGMENT_KIND_PROMPT
    assert (
        not world.rows(schema.parked)
        and not world.rows(schema.refused)
        and not world.rows(schema.dead)
    )
    subjects = [row.subject for row in world.rows(schema.outbox)]
    assert subjects == [f"growth.{world.forge.run_id}", f"lineage.{world.forge.run_id}.closed"]


def test_every_message_twice_changes_nothing(world: World) -> None:
    spec = world.forge.spec()
    opened = world.forge.opened(spec)
    world.ingest(opened, opened)
    epoch = world.claim(spec.tree_id)
    items = world.forge.life(spec, epoch=epoch)
    for item in items:
        world.ingest(item)
        world.ingest(item, item)
    once = _tree(world, spec.tree_id)
    world.ingest(opened, *items, *items)
    assert _tree(world, spec.tree_id) == once
    assert once.state == tree_pb2.TREE_STATE_CLOSED
    assert len(world.rows(schema.outbox)) == 2 and not world.rows(schema.late)


@pytest.mark.parametrize("seed", range(12))
def test_any_order_gives_the_same_tree(world: World, seed: int) -> None:
    spec = world.forge.spec()
    world.open(spec)
    items = world.forge.life(spec)
    random.Random(seed).shuffle(items)
    split = seed % len(items)
    world.ingest(*items[:split])
    world.ingest(*items[split:])
    tree = _tree(world, spec.tree_id)
    assert (
        tree.state == tree_pb2.TREE_STATE_CLOSED
        and len(tree.segments) == 4
        and len(tree.scores) == 2
    )
    assert [s.ordinal for s in tree.segments] == [0, 0, 1, 0]  # depth first, whatever came first
    assert not world.rows(schema.parked)


def test_the_same_early_event_waits_once(world: World) -> None:
    spec = world.forge.spec()
    child = world.forge.child(world.forge.root(spec))
    item = world.forge.segments(child)
    world.open(spec)
    for _ in range(3):
        world.ingest(item, item)
    assert len(world.rows(schema.parked)) == 1


def test_events_of_an_older_claim_are_refused(world: World) -> None:
    spec = world.forge.spec()
    old = world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    world.ingest(world.forge.segments(root, epoch=old))
    new = world.claim(spec.tree_id, "node-2")
    assert new == old + 1
    stale = [
        world.forge.segments(leaf, epoch=old),
        world.forge.grown(spec.tree_id, epoch=old),
        world.forge.leaf(root, epoch=old),
    ]
    world.ingest(*stale)
    world.ingest(*stale)
    assert _reasons(world) == ["STALE_EPOCH"] * 3
    assert len(_tree(world, spec.tree_id).segments) == 1
    # The same segment is accepted under the new claim: its id does not hold the epoch.
    world.ingest(world.forge.segments(leaf, epoch=new), world.forge.leaf(leaf, epoch=new))
    assert len(_tree(world, spec.tree_id).segments) == 2


def test_the_first_segment_at_a_place_wins_and_the_other_subtree_is_refused(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    winner = world.forge.child(root, 0)
    loser = world.forge.child(root, 0, length=5)
    below = world.forge.child(loser, 0)
    deeper = world.forge.child(below, 0)
    world.ingest(world.forge.segments(root, winner))
    world.ingest(world.forge.segments(deeper), world.forge.leaf(deeper))
    world.ingest(world.forge.segments(below))
    world.ingest(world.forge.segments(loser))
    rows = {row.segment: row for row in world.rows(schema.refused)}
    assert rows[loser.id].reason == "ORDINAL_TAKEN" and rows[loser.id].winner == winner.id
    assert rows[below.id].reason == rows[deeper.id].reason == "PARENT_REFUSED"
    assert not world.rows(schema.parked)
    assert len(_tree(world, spec.tree_id).segments) == 2
    world.ingest(
        world.forge.segments(world.forge.child(below, 1))
    )  # later, and in another transaction
    assert _reasons(world)[-1] == "PARENT_REFUSED" and len(_reasons(world)) == 5
    assert not world.rows(schema.parked)


def test_a_bad_message_is_buried_and_the_rest_is_stored(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    good = world.forge.child(root, 0)
    broken = world.forge.segments(world.forge.child(root, 1))
    message = events_pb2.SegmentsGrown.FromString(broken.data)
    message.segments[0].segment.tokens = np.arange(9, dtype="<i4").tobytes()
    forged = world.forge.item("segment", message)
    garbage = world.forge.item("leaf", events_pb2.LeavesFinished())
    noise = type(garbage)(garbage.subject, b"\xff\xff\xff", world.forge.sequence + 1)
    world.forge.sequence += 1
    world.ingest(world.forge.segments(root), forged, garbage, noise, world.forge.segments(good))
    assert len(_tree(world, spec.tree_id).segments) == 2
    dead = world.rows(schema.dead)
    assert len(dead) == 3
    assert "log-probs" in dead[0].reason
    letters = [events_pb2.DeadLetter.FromString(row.letter) for row in dead]
    assert (
        letters[0].payload == forged.data
        and letters[0].sequence == forged.sequence
        and letters[0].stream == "LINEAGE"
    )
    world.ingest(forged, garbage, noise)
    assert len(world.rows(schema.dead)) == 3


def test_a_wrong_id_is_buried(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    message = events_pb2.SegmentsGrown.FromString(world.forge.segments(world.forge.root(spec)).data)
    message.segments[0].segment.id = b"x" * 32
    world.ingest(world.forge.item("segment", message))
    assert "digest" in world.one(schema.dead).reason and not world.rows(schema.segments)


def test_one_bad_segment_among_good_ones_is_buried_alone(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    beyond = world.forge.child(root, 1, fork=99)
    world.ingest(world.forge.segments(root, world.forge.child(root, 0), beyond))
    assert len(_tree(world, spec.tree_id).segments) == 2
    assert world.one(schema.dead).reason.startswith("BAD_FORK")


def test_forced_tokens_are_context(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    forced = world.forge.child(root, 0, kind=Kind.FORCED, origin=Origin.TEMPLATE, policy=b"")
    world.ingest(world.forge.segments(root, forced))
    assert world.one(schema.trees).sampled_tokens == 0 and world.one(schema.trees).segments == 2


def test_a_message_of_another_run_is_buried(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    stranger = Forge("other-00000002", sequence=100)
    world.ingest(stranger.segments(world.forge.root(spec)))
    assert world.one(schema.dead).reason.startswith("RUN_MISMATCH")


def test_forced_tokens_are_part_of_the_answer_and_signals_are_kept(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    top = Signals(np.array([[7, 2]]), np.array([[-0.5, -1.1]]), np.array([0.25]), np.array([0.75]))
    forced = world.forge.child(
        root,
        0,
        length=1,
        kind=Kind.FORCED,
        origin=Origin.BRANCH,
        sampled_logprobs_T=np.zeros(1),
        signals=top,
    )
    after = world.forge.child(forced, 0, length=4, entropies_T=np.array([0.1, 0.2, 0.3, 0.4]))
    world.ingest(world.forge.segments(root, forced, after), world.forge.leaf(after))
    world.ingest(world.forge.grown(spec.tree_id, after), world.forge.score(after))
    tree = _tree(world, spec.tree_id)
    assert (
        world.one(schema.trees).sampled_tokens == 4 and world.one(schema.tallies).path_tokens == 5
    )
    stored = tree_from_wire(tree).segments
    assert set(stored) == {root.id, forced.id, after.id}
    kept = stored[forced.id].signals
    assert kept.top_ids_T_K.tolist() == [[7, 2]] and kept.semantic_T.tolist() == [0.25]
    assert (
        kept.top_logprobs_T_K.tobytes() == top.top_logprobs_T_K.tobytes()
        and not stored[after.id].signals
    )
    assert stored[after.id].entropies_T.tobytes() == after.entropies_T.tobytes()
    for segment in tree.segments:
        trees.drop_signals(segment)
    light = tree_from_wire(tree).segments
    assert (
        light[forced.id].signals.head_T.tolist() == [0.75]
        and not light[forced.id].signals.top_ids_T_K.size
    )
    assert not light[after.id].signals
