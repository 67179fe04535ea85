"""Groups for scorers of whole groups: completeness, contents, and the deadline of their scores."""

from banyan.segment import Segment
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import group_scoring
from services.treestore.loops import deadlines
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import CLOSED, SCORING
from tests.treestore.forge import World

VOTE = {"scorers": ["majority"], "group_scorers": ["majority"]}
Leaves = list[Segment]


def _open(world: World, index: int, size: int = 2, **more: object) -> tuple[tree_pb2.TreeSpec, int]:
    spec = world.forge.spec(0, index, size, **{**VOTE, **more})
    return spec, world.open(spec)


def _grow(world: World, spec: tree_pb2.TreeSpec, epoch: int, ended: int = 2) -> Leaves:
    """Two branches of the prompt, of which `said` were said to have ended."""
    forge, root = world.forge, world.forge.root(spec)
    leaves = [forge.child(root, 1), forge.child(root, 0)]
    world.ingest(forge.segments(root, *leaves, epoch=epoch))
    world.ingest(
        *(forge.leaf(leaf, 2, epoch=epoch, completion=f"{leaf.ordinal}") for leaf in leaves[:ended])
    )
    message = events_pb2.TreeGrown(
        run_id=spec.run_id, tree_id=spec.tree_id, claim_epoch=epoch, node_id="node-1"
    )
    message.leaves.extend(tree_pb2.LeafRef(segment=leaf.id, end=2) for leaf in leaves)
    world.ingest(forge.item("grown", events_pb2.TreesGrown(trees=[message])))
    return leaves


def _score(world: World, leaf: Segment, value: float) -> None:
    item = world.forge.score(leaf, value, "majority")
    message = events_pb2.LeavesScored.FromString(item.data)
    message.scores[0].scored.leaf.end = 2
    world.ingest(world.forge.item("score", message))


def _read(world: World, spec: tree_pb2.TreeSpec, epoch: int = 1) -> ts.ReadGroupResponse:
    request = ts.ReadGroupRequest(tree_id=spec.tree_id, claim_epoch=epoch)
    return world.database.query(lambda c: group_scoring.read(c, request))


def _look(world: World) -> None:
    if world.database.query(lambda c: deadlines.is_due(c, world.now(), world.settings)):
        world.database.transact(lambda c: deadlines.reconcile(c, world.now(), world.settings))


def test_a_group_is_whole_when_its_last_tree_is_grown(world: World) -> None:
    (a, epoch_a), (b, epoch_b) = _open(world, 0), _open(world, 1)
    assert not _read(world, a).settled  # its end is still on its way
    _grow(world, a, epoch_a)
    group = _read(world, a)
    assert group.settled and not group.whole and not group.transcripts
    _grow(world, b, epoch_b)
    for spec in (a, b):
        group = _read(world, spec)
        assert group.settled and group.whole and group.group_id == a.group_id
        assert [t.key.tree_id for t in group.transcripts] == [
            a.tree_id,
            a.tree_id,
            b.tree_id,
            b.tree_id,
        ]
        assert [t.completion for t in group.transcripts] == [
            "0",
            "1",
            "0",
            "1",
        ]  # from left to right
        assert all(
            list(t.scorers) == ["majority"] and t.row_json == a.row_json for t in group.transcripts
        )


def test_a_tree_that_is_not_opened_yet_is_waited_for(world: World) -> None:
    a, epoch = _open(world, 0)
    _grow(world, a, epoch)
    assert _read(world, a).settled and not _read(world, a).whole


def test_a_leaf_that_has_no_text_yet_is_waited_for(world: World) -> None:
    a, epoch = _open(world, 0, size=1)
    leaves = _grow(world, a, epoch, ended=1)
    # Nothing triggers another read, so the verifier must ask again.
    assert not _read(world, a).settled
    world.ingest(world.forge.leaf(leaves[1], 2, epoch=epoch, completion="late"))
    assert [t.completion for t in _read(world, a).transcripts] == ["late", "1"]


def test_what_was_dropped_before_it_was_grown_brings_nothing(world: World) -> None:
    (a, epoch_a), (b, epoch_b) = _open(world, 0), _open(world, 1)
    _grow(world, a, epoch_a)
    world.return_tree(b.tree_id, epoch_b, "UNUSABLE: test")
    group = _read(world, b, 0)
    assert group.settled and group.whole
    assert [t.key.tree_id for t in group.transcripts] == [a.tree_id] * 2


def test_an_end_under_an_old_claim_is_not_waited_for(world: World) -> None:
    a, epoch = _open(world, 0)
    assert not _read(world, a, epoch).settled
    assert world.claim(a.tree_id, "node-2") == epoch + 1
    group = _read(world, a, epoch)
    assert group.settled and not group.whole


def test_half_a_group_that_was_scored_is_read_whole_with_what_is_owed(world: World) -> None:
    """A verifier was killed in between: the vote is of all leaves, the scores are of those that
    lack one.
    """
    a, epoch = _open(world, 0, size=1)
    first, second = _grow(world, a, epoch)
    _score(world, first, 1.0)
    group = _read(world, a)
    assert [(t.key.leaf.segment, list(t.scorers)) for t in group.transcripts] == [
        (second.id, ["majority"]),
        (first.id, []),
    ]
    _score(world, second, 0.0)
    assert _read(world, a).whole and not _read(world, a).transcripts
    assert world.one(schema.trees).state == CLOSED


def test_scorers_of_single_leaves_are_not_asked_for_the_vote(world: World) -> None:
    spec, epoch = _open(world, 0, size=1, scorers=["number", "majority"])
    leaf, _ = _grow(world, spec, epoch)
    key = ts.LeafKey(
        tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=leaf.id, end=2), claim_epoch=epoch
    )
    from services.treestore.queries import transcripts

    (alone,) = world.database.query(lambda c: transcripts.read(c, [key]))
    assert list(alone.scorers) == ["number"]
    assert all(list(t.scorers) == ["majority"] for t in _read(world, spec).transcripts)


def test_the_deadline_of_a_vote_runs_from_the_growth_of_the_last_tree(world: World) -> None:
    (a, epoch_a), (b, epoch_b) = _open(world, 0), _open(world, 1)
    _grow(world, a, epoch_a)
    for _ in range(3):  # longer than a leaf may wait: the other tree still grows
        world.now.ms += a.score_deadline_ms
        _look(world)
        assert world.one(schema.trees, tree_id=a.tree_id).state == SCORING
    world.now.ms += 1000
    _grow(world, b, epoch_b)
    grown = world.now.ms
    while world.now.ms < grown + a.score_deadline_ms - 500:
        world.now.ms += 500
        _look(world)
        assert not world.rows(schema.scores), "given up before the group had its time"
    world.now.ms = grown + a.score_deadline_ms
    _look(world)
    assert {(row.state, row.reason) for row in world.rows(schema.scores)} == {(2, "DEADLINE")}
    assert {row.state for row in world.rows(schema.trees)} == {CLOSED}


def test_other_scorers_keep_their_own_deadline(world: World) -> None:
    spec, epoch = _open(world, 0, scorers=["number", "majority"])
    _grow(world, spec, epoch)
    world.now.ms += spec.score_deadline_ms
    _look(world)
    assert [row.scorer for row in world.rows(schema.scores)] == ["number", "number"]


def test_that_a_tree_is_grown_is_said_again_while_its_group_owes_a_vote(world: World) -> None:
    spec, epoch = _open(world, 0, size=1)
    leaves = _grow(world, spec, epoch)
    world.database.transact(lambda c: c.execute(schema.outbox.delete()))
    world.now.ms += spec.score_deadline_ms // 2
    _look(world)
    reminder = world.one(schema.outbox)
    repeated = events_pb2.TreesGrown.FromString(reminder.payload)
    (grown,) = repeated.trees
    assert (
        reminder.subject.endswith(".grown")
        and grown.claim_epoch == epoch
        and len(grown.leaves) == 2
    )
    before = world.rows(schema.leaves)
    # Our own reminder, from the log: nothing new.
    world.ingest(world.forge.item("grown", repeated))
    assert (
        world.rows(schema.leaves) == before
        and not world.rows(schema.refused)
        and not world.rows(schema.dead)
    )
    for leaf in leaves:
        _score(world, leaf, 1.0)
    assert world.one(schema.trees).state == CLOSED
