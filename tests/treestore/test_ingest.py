"""Idempotent ingest: repeats, early events, refusals, dead letters (PROTOCOL 1 to 4)."""

import itertools
import random

import numpy as np
import pytest

from banyan.segment import Kind
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore import progress, runs, schema, trees
from services.treestore.rows import CLOSED, GROWING, SCORING
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
    assert not world.rows(schema.parked) and not world.rows(schema.refused) and not world.rows(schema.dead)
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
    assert tree.state == tree_pb2.TREE_STATE_CLOSED and len(tree.segments) == 4 and len(tree.scores) == 2
    assert [s.ordinal for s in tree.segments] == [0, 0, 1, 0]  # depth first, whatever came first
    assert not world.rows(schema.parked)


def test_events_before_their_tree_and_their_run_wait(make_world) -> None:
    world: World = make_world()
    world.database.transact(runs.take_gateway_epoch)
    spec = world.forge.spec()
    world.ingest(*reversed(world.forge.life(spec)))
    world.ingest(world.forge.opened(spec))
    assert not world.rows(schema.trees) and len(world.rows(schema.parked)) == 10
    request = rs.PutRunRequest(run=world.forge.run(), request_id="first", gateway_epoch=1)
    world.database.transact(lambda c: runs.put(c, request, world.now(), world.settings))
    # No claim was issued here, so epoch 1 came from a store that was lost; it is learned from the log.
    assert world.one(schema.trees).state == CLOSED
    assert not world.rows(schema.parked)


def test_the_same_early_event_waits_once(world: World) -> None:
    spec = world.forge.spec()
    child = world.forge.child(world.forge.root(spec))
    item = world.forge.segments(child)
    world.open(spec)
    for _ in range(3):
        world.ingest(item, item)
    assert len(world.rows(schema.parked)) == 1


def test_a_tree_closes_at_the_last_score_and_not_before(world: World) -> None:
    spec = world.forge.spec(scorers=["number", "regex"])
    epoch = world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    world.ingest(world.forge.segments(root, leaf, epoch=epoch), world.forge.leaf(leaf, epoch=epoch))
    world.ingest(world.forge.score(leaf, scorer="number"))
    assert world.one(schema.trees).state == GROWING
    world.ingest(world.forge.grown(spec.tree_id, leaf, epoch=epoch))
    assert world.one(schema.trees).state == SCORING
    world.ingest(world.forge.score(leaf, 0.5, scorer="regex"))
    assert world.one(schema.trees).state == CLOSED
    assert world.one(schema.trees).mean_reward == 0.75


def test_grown_waits_for_every_listed_segment(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    first, second = world.forge.child(root, 0), world.forge.child(root, 1)
    world.ingest(world.forge.grown(spec.tree_id, first, second), world.forge.segments(root, first))
    world.ingest(world.forge.score(first), world.forge.score(second))
    assert world.one(schema.trees).state == GROWING
    world.ingest(world.forge.segments(second))
    assert world.one(schema.trees).state == CLOSED


def test_a_grown_tree_without_leaves_closes(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    world.ingest(world.forge.grown(spec.tree_id))
    assert world.one(schema.trees).state == CLOSED


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
    # The same segment under the new claim is welcome: its id does not hold the epoch.
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
    world.ingest(world.forge.segments(world.forge.child(below, 1)))  # later, and in another transaction
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
    assert letters[0].payload == forged.data and letters[0].sequence == forged.sequence and letters[0].stream == "LINEAGE"
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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tree_id": b"t" * 32}, "digest"),
        ({"row_digest": b"r" * 32}, "digest"),
        ({"purpose": 2}, "label"),
        ({"index": 3}, "index"),
        ({"purpose": 0}, "purpose"),
        ({"scorers": ["a", "a"]}, "twice"),
    ],
)
def test_a_tree_that_contradicts_itself_is_buried(world: World, change: dict[str, object], reason: str) -> None:
    world.ingest(world.forge.opened(world.forge.spec(**change)))  # type: ignore[arg-type]
    assert reason in world.one(schema.dead).reason and not world.rows(schema.trees)


def test_a_held_out_row_is_never_opened_for_training(make_world) -> None:
    world: World = make_world()
    held = world.forge.spec(ordinal=3)
    world.start(held_out=(held.row_digest,))
    world.ingest(world.forge.opened(held), world.forge.opened(world.forge.spec(ordinal=4)))
    assert world.one(schema.dead).reason.startswith("HELD_OUT")
    assert world.one(schema.trees).tree_id == world.forge.spec(ordinal=4).tree_id
    world.ingest(world.forge.opened(world.forge.spec(ordinal=3, label="before-greedy")))
    assert len(world.rows(schema.trees)) == 2


def test_an_older_gateway_opens_nothing(world: World) -> None:
    world.database.transact(runs.take_gateway_epoch)
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec, epoch=1))
    assert _reasons(world) == ["STALE_EPOCH"] and not world.rows(schema.trees)
    world.ingest(world.forge.opened(spec, epoch=2))
    assert world.one(schema.trees).state == GROWING


def test_a_group_has_one_shape_and_one_tree_at_each_index(world: World) -> None:
    world.ingest(world.forge.opened(world.forge.spec(size=2)))
    other_row = world.forge.spec(ordinal=5, size=2)
    clash = world.forge.spec(size=2)
    clash.row_json, clash.row_digest = other_row.row_json, other_row.row_digest
    from banyan import digest

    clash.tree_id = digest.tree_id(clash.run_id, clash.group_id, clash.row_digest, clash.index)
    wrong_size = world.forge.spec(index=1, size=3)
    world.ingest(world.forge.opened(clash), world.forge.opened(wrong_size))
    assert [row.reason.split(":")[0] for row in world.rows(schema.dead)] == ["INDEX_TAKEN", "GROUP_MISMATCH"]


def test_a_terminal_score_never_changes_and_a_later_one_is_kept(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    first, second = world.forge.score(leaf, None), world.forge.score(leaf, 1.0)
    world.ingest(world.forge.segments(root, leaf), world.forge.leaf(leaf), first)
    world.ingest(second, second, first)
    score = _tree(world, spec.tree_id).scores[0].score
    assert score.state == tree_pb2.SCORE_STATE_UNSCORABLE and score.reason == "EXCEPTION"
    assert world.one(schema.late).reason == "SCORED_BEFORE"


def test_a_scorer_that_nobody_asked_and_a_value_that_is_none_are_buried(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    world.ingest(world.forge.segments(root), world.forge.leaf(root))
    world.ingest(world.forge.score(root, scorer="stranger"), world.forge.score(root, float("nan")))
    assert next(row.reason.split(":")[0] for row in world.rows(schema.dead)) == "SCORER_UNKNOWN"
    assert "finite" in world.rows(schema.dead)[1].reason
    assert not world.rows(schema.scores)


def test_progress_counts_what_happened(world: World) -> None:
    for ordinal, index in itertools.product(range(3), range(2)):
        spec = world.forge.spec(ordinal, index, size=2)
        if ordinal < 2:
            world.live(spec)
        else:
            world.open(spec)
    world.live(world.forge.spec(label="before-greedy"))
    read = world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now()))
    assert (read.groups.opened, read.groups.open, read.groups.closed) == (3, 1, 2)
    samples = read.samples
    # Four closed trees: a prompt of 3 tokens, three segments of 4; two leaves with paths of 4 and 8.
    assert (samples.sampled_tokens, samples.path_tokens) == (4 * 12, 4 * 12)
    assert (samples.prompt_tokens, samples.prompt_path_tokens) == (12, 24)
    assert (samples.leaves, samples.scored, samples.unscorable, samples.reward_sum) == (8, 8, 0, 4.0)
    evaluation = read.evals[0]
    assert (evaluation.label, evaluation.groups, evaluation.done) == ("before-greedy", 1, 1)
    assert (evaluation.scored, evaluation.correct, evaluation.reward_sum) == (2, 1, 1.0)
    assert read.growing_nodes == 1 and not read.HasField("step")


def test_opened_counts_only_groups_without_a_gap(world: World) -> None:
    def opened() -> int:
        return world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now())).groups.opened

    world.ingest(world.forge.opened(world.forge.spec(1)), world.forge.opened(world.forge.spec(0, 0, size=2)))
    assert opened() == 0
    world.ingest(world.forge.opened(world.forge.spec(0, 1, size=2)))
    assert opened() == 2


def test_forced_tokens_are_context(world: World) -> None:
    from banyan.segment import Origin

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


def test_a_listed_leaf_needs_no_word_of_its_own_to_be_scored(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    world.ingest(world.forge.score(leaf), world.forge.segments(root, leaf), world.forge.grown(spec.tree_id, leaf))
    assert world.one(schema.trees).state == CLOSED


def test_a_group_is_closed_only_when_all_its_trees_were_opened(world: World) -> None:
    world.live(world.forge.spec(0, 0, size=2))
    assert world.one(schema.groups).state == 1
    closed = events_pb2.TreeClosed.FromString(world.rows(schema.outbox)[-1].payload)
    assert not closed.group_closed
    world.live(world.forge.spec(0, 1, size=2))
    assert world.one(schema.groups).state == 2
    assert events_pb2.TreeClosed.FromString(world.rows(schema.outbox)[-1].payload).group_closed
