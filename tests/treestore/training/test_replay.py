"""Replay: drawn from consumed groups alone, recorded with the batch, shown as lineage; never held
out or dropped.
"""

from collections.abc import Sequence

import pytest

from banyan import digest
from banyan.errors import BanyanError
from banyan.plugins import StoredGroup
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.segments import leaf_to_wire
from services.treestore.api import lineage
from services.treestore.storage import schema
from services.treestore.training import batches
from services.treestore.training.replay import buffer, sampling
from services.treestore.unit_of_work.rows import CLOSED, CONSUMED
from tests.treestore.forge import World


def _grown(
    world: World,
    ordinal: int,
    rewards: Sequence[float | None],
    row: int | None = None,
    form: float | None = None,
) -> tree_pb2.TreeSpec:
    """Grow a group of one tree with a leaf for each reward, and return its spec.

    row: ordinal of a group with the same row; None for a row of its own
    form: value of a second scorer for each leaf
    """
    forge = world.forge
    like = forge.spec(ordinal if row is None else row)
    tree_id = digest.tree_id(forge.run_id, forge.spec(ordinal).group_id, like.row_digest, 0)
    scorers = ["number"] if form is None else ["number", "form"]
    spec = forge.spec(
        ordinal,
        row_digest=like.row_digest,
        row_json=like.row_json,
        tree_id=tree_id,
        scorers=scorers,
    )
    epoch, root = world.open(spec), forge.root(spec)
    branches = [forge.child(root, number) for number in range(len(rewards))]
    world.ingest(
        forge.segments(root, *branches, epoch=epoch),
        *(forge.leaf(b, epoch=epoch) for b in branches),
    )
    world.ingest(forge.grown(spec.tree_id, *branches, epoch=epoch))
    world.ingest(*(forge.score(b, value) for b, value in zip(branches, rewards, strict=True)))
    if form is not None:
        world.ingest(*(forge.score(b, form, "form") for b in branches))
    return spec


def _leaf(world: World, spec: tree_pb2.TreeSpec, number: int) -> tree_pb2.LeafRef:
    branch = world.forge.child(world.forge.root(spec), number)
    return leaf_to_wire(Leaf(branch.id, len(branch)))


def _request(
    world: World,
    ordinal: int,
    groups: Sequence[str],
    replayed: Sequence[ts.ReplayedTree] = (),
) -> ts.CommitBatchRequest:
    return ts.CommitBatchRequest(
        run_id=world.forge.run_id,
        ordinal=ordinal,
        learner_epoch=1,
        use="train",
        group_ids=groups,
        replayed=replayed,
    )


def _dropped(world: World, ordinal: int) -> tree_pb2.TreeSpec:
    spec = world.forge.spec(ordinal)
    world.return_tree(spec.tree_id, world.open(spec), "UNUSABLE: test")
    return spec


def _commit(world: World, *args: object, **more: object) -> None:
    request = _request(world, *args, **more)  # type: ignore[arg-type]
    world.database.transact(lambda c: batches.commit(c, request, world.now(), world.settings))


def _sample(world: World, **options: object) -> list[ts.ReplayedTree]:
    fields: dict[str, object] = {
        "run_id": world.forge.run_id,
        "policy": "recent",
        "before_batch": 100,
        "right": 0.5,
    }
    request = ts.SampleReplayRequest(**{**fields, **options})  # type: ignore[arg-type]
    answer = world.database.query(lambda c: sampling.sample(c, request))
    assert list(answer.tree_ids) == [tree.tree_id for tree in answer.trees]
    return list(answer.trees)


def _stored(world: World, **options: int) -> list[StoredGroup]:
    request = ts.SampleReplayRequest(run_id=world.forge.run_id, **{"before_batch": 100, **options})
    return world.database.query(lambda c: buffer.stored(c, request))


def test_only_consumed_groups_are_stored_the_newest_of_each_row(world: World) -> None:
    specs = [_grown(world, n, [0, n]) for n in range(3)]
    newer_group = _grown(world, 3, [1, 1, 0], row=0)
    dropped, waiting = _dropped(world, 4), _grown(world, 5, [0, 1])
    _commit(world, 0, [specs[0].group_id, specs[1].group_id])
    _commit(world, 1, [specs[2].group_id, newer_group.group_id])
    stored = _stored(world)
    assert [(g.group_id, g.batch, sorted(g.rewards)) for g in stored] == [
        (specs[1].group_id, 0, [0, 1]),
        (specs[2].group_id, 1, [0, 2]),
        (newer_group.group_id, 1, [0, 1, 1]),
    ]
    assert stored[2].row == specs[0].row_digest and [g.ordinal for g in stored] == [1, 2, 3]
    assert {dropped.group_id, waiting.group_id}.isdisjoint(group.group_id for group in stored)
    assert [g.group_id for g in _stored(world, before_batch=1)] == [
        specs[0].group_id,
        specs[1].group_id,
    ]
    assert [g.group_id for g in _stored(world, first_batch=1)] == [
        specs[2].group_id,
        newer_group.group_id,
    ]
    assert [g.group_id for g in _stored(world, capacity=2)] == [
        specs[2].group_id,
        newer_group.group_id,
    ]


def test_the_buffer_holds_no_more_than_its_capacity(world: World) -> None:
    """The published code of DOTS holds at most C + σB groups while a batch is drawn; here C = 3, as
    a batch's own groups are stored after it.
    """
    specs = [_grown(world, n, [0, 1]) for n in range(8)]
    for number in range(4):
        _commit(world, number, [spec.group_id for spec in specs[2 * number : 2 * number + 2]])
        assert len(_stored(world, capacity=3)) == min(3, 2 * number + 2)


def test_a_draw_is_the_same_whatever_was_committed_since(world: World) -> None:
    specs = [_grown(world, n, [0, 1]) for n in range(8)]
    _commit(world, 0, [s.group_id for s in specs[:6]])
    options = {"count": 3, "seed": 7, "before_batch": 1}
    first = _sample(world, **options)
    assert len({tree.group_id for tree in first}) == 3 and all(
        not tree.HasField("leaf") for tree in first
    )
    _commit(world, 1, [s.group_id for s in specs[6:]])
    assert _sample(world, **options) == first
    draws = {
        tuple(tree.group_id for tree in _sample(world, **{**options, "seed": seed}))
        for seed in range(20)
    }
    assert len(draws) > 10
    assert len(_sample(world, count=50)) == 8 and _sample(world, count=50, before_batch=0) == []


def test_a_success_of_the_row_is_found_in_the_newest_tree_that_has_one(world: World) -> None:
    old, newer, newest = (
        _grown(world, 0, [1, 0]),
        _grown(world, 1, [0, 1, 0.6], row=0),
        _grown(world, 2, [0, 0.4], row=0),
    )
    other, mixed = _grown(world, 3, [0, 0]), _grown(world, 4, [1, None])
    for number, spec in enumerate((old, newer, newest, other, mixed)):
        _commit(world, number, [spec.group_id])
    ask = [
        ts.FailedGroup(group_id=f"g{n}", row_digest=s.row_digest)
        for n, s in enumerate((old, other, mixed))
    ]
    assert _sample(world, failed=ask) == [
        ts.ReplayedTree(tree_id=newer.tree_id, group_id="g0", leaf=_leaf(world, newer, 1)),
        ts.ReplayedTree(tree_id=mixed.tree_id, group_id="g2", leaf=_leaf(world, mixed, 0)),
    ]
    before = _sample(world, failed=ask[:1], before_batch=1)
    assert [(tree.tree_id, tree.leaf) for tree in before] == [(old.tree_id, _leaf(world, old, 0))]
    assert (
        _sample(world, failed=ask[:1], first_batch=2) == [] == _sample(world, failed=ask, right=1.5)
    )


def test_a_success_is_found_however_many_newer_trees_only_have_the_form(world: World) -> None:
    """As in DART-GUI (arXiv 2509.23866), it is the newest success of the whole table; here a second
    scorer finds each failure well formed.
    """
    right = _grown(world, 0, [0, 1], form=1.0)
    failures = [_grown(world, n, [0, 0], row=0, form=1.0) for n in range(1, 40)]
    for number, spec in enumerate((right, *failures)):
        _commit(world, number, [spec.group_id])
    ask = [ts.FailedGroup(group_id="g", row_digest=right.row_digest)]
    assert [tree.tree_id for tree in _sample(world, failed=ask, right=1.0)] == [right.tree_id]
    assert _sample(world, failed=ask, right=1.0, first_batch=1) == []


def _again(
    spec: tree_pb2.TreeSpec, leaf: tree_pb2.LeafRef | None = None, group: str = ""
) -> ts.ReplayedTree:
    return ts.ReplayedTree(tree_id=spec.tree_id, group_id=group or spec.group_id, leaf=leaf)


def test_what_a_batch_replayed_is_kept_in_order_and_consumed_once(world: World) -> None:
    specs = [_grown(world, n, [0, 1]) for n in range(4)]
    _commit(world, 0, [specs[0].group_id, specs[1].group_id])
    replayed = [_again(specs[1]), _again(specs[0], _leaf(world, specs[0], 1), specs[2].group_id)]
    _commit(world, 1, [specs[2].group_id], replayed)
    _commit(world, 1, [specs[2].group_id], replayed)  # a repetition changes nothing
    stored = world.database.query(lambda c: batches.read(c, world.forge.run_id, 1))
    assert (
        stored is not None
        and list(stored.replayed) == replayed
        and list(stored.tree_ids) == [specs[2].tree_id]
    )
    assert len(world.rows(schema.batch_replays)) == 2 and len(world.rows(schema.batch_trees)) == 3
    with pytest.raises(BanyanError) as refused:
        _commit(world, 1, [specs[2].group_id], replayed[:1])
    assert refused.value.reason == "ORDINAL_TAKEN"
    _commit(world, 2, [specs[3].group_id], [_again(specs[1])])  # as often as it is drawn
    assert {t.state for t in world.rows(schema.trees)} == {CONSUMED}


def test_what_must_not_be_replayed_is_refused_and_changes_nothing(world: World) -> None:
    specs = [_grown(world, n, [0, 1]) for n in range(3)]
    dropped, measured = _dropped(world, 3), world.forge.spec(0, label="before-greedy")
    world.live(measured)
    _commit(world, 0, [specs[0].group_id])
    fresh = specs[1].group_id

    def refusal(tree: ts.ReplayedTree) -> str:
        with pytest.raises(BanyanError) as refused:
            _commit(world, 1, [fresh], [tree])
        assert world.one(schema.trees, tree_id=specs[1].tree_id).state == CLOSED and not world.rows(
            schema.batch_replays
        )
        return refused.value.reason

    strange = ts.ReplayedTree(tree_id=b"x" * 32, group_id=fresh)
    assert {refusal(_again(s)) for s in (specs[1], specs[2], dropped, measured)} | {
        refusal(strange)
    } == {"NOT_REPLAYABLE"}
    assert (
        refusal(_again(specs[0], group=fresh))
        == refusal(_again(specs[0], _leaf(world, specs[0], 1)))
        == "INVALID_INPUT"
    )
    assert refusal(_again(specs[0], _leaf(world, specs[1], 1), fresh)) == "INVALID_INPUT"
    run = world.one(schema.runs)
    world.database.transact(
        lambda c: c.execute(
            schema.runs.update().values(held_out=run.held_out + specs[0].row_digest)
        )
    )
    assert refusal(_again(specs[0])) == "HELD_OUT"


def test_a_segment_knows_every_batch_that_trained_on_it(world: World) -> None:
    specs = [_grown(world, n, [0, 1]) for n in range(3)]
    for number, spec in enumerate(specs):
        replayed = [
            [],
            [_again(specs[0])],
            [_again(specs[0], _leaf(world, specs[0], 1), spec.group_id)],
        ][number]
        _commit(world, number, [spec.group_id], replayed)
    root = world.forge.root(specs[0])

    def uses(segment: bytes) -> list[tuple[int, str]]:
        consumers = world.database.query(lambda c: lineage.consumers(c, segment)).consumers
        return [(consumer.batch.ordinal, consumer.batch.use) for consumer in consumers]

    assert (
        uses(root.id)
        == uses(world.forge.child(root, 1).id)
        == [(0, "train"), (1, "replay"), (2, "replay")]
    )
    assert uses(world.forge.child(root, 0).id) == [
        (0, "train"),
        (1, "replay"),
    ]  # only the path of the success was replayed
