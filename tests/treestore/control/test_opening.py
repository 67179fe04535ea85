"""Opening of trees and groups: accepted, refused, and parked until the run comes."""

import pytest

from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control import progress, runs
from services.treestore.ingest.item import Item
from services.treestore.loops import deadlines
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.rows import CLOSED, GROWING
from tests.treestore.forge import World


def _reasons(world: World) -> list[str]:
    return [row.reason for row in world.rows(schema.refused)]


def test_events_before_their_tree_and_their_run_wait(make_world) -> None:
    world: World = make_world(settings=Settings(rebuild=True))
    world.database.transact(runs.take_gateway_epoch)
    spec = world.forge.spec()
    world.ingest(*reversed(world.forge.life(spec)))
    world.ingest(world.forge.opened(spec))
    assert not world.rows(schema.trees) and len(world.rows(schema.parked)) == 10
    request = rs.PutRunRequest(run=world.forge.run(), request_id="first", gateway_epoch=1)
    world.database.transact(lambda c: runs.put(c, request, world.now(), world.settings))
    # No claim was issued here, so epoch 1 is that of a lost store; it is learned from the log.
    assert world.one(schema.trees).state == CLOSED
    assert not world.rows(schema.parked)


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
def test_a_tree_that_contradicts_itself_is_buried(
    world: World, change: dict[str, object], reason: str
) -> None:
    world.ingest(world.forge.opened(world.forge.spec(**change)))  # type: ignore[arg-type]
    assert reason in world.one(schema.dead).reason and not world.rows(schema.trees)


def test_trees_of_one_message_are_opened_and_the_bad_one_is_buried_alone(world: World) -> None:
    good = [world.forge.spec(ordinal=ordinal) for ordinal in range(3)]
    item = world.forge.all_opened([good[0], world.forge.spec(ordinal=7, index=3), *good[1:]])
    world.ingest(item)
    assert {row.tree_id for row in world.rows(schema.trees)} == {spec.tree_id for spec in good}
    letter = world.one(schema.dead)
    assert "index" in letter.reason
    world.ingest(item)
    assert len(world.rows(schema.trees)) == 3


def test_an_opening_of_nothing_is_buried(world: World) -> None:
    world.ingest(world.forge.all_opened([]))
    assert "nothing" in world.one(schema.dead).reason


def test_a_tree_that_was_given_up_while_parked_is_opened_by_its_letter(make_world) -> None:
    """The letter holds a message that the readers of the subject understand."""
    world: World = make_world()
    world.database.transact(runs.take_gateway_epoch)
    world.ingest(
        world.forge.all_opened([world.forge.spec(ordinal=ordinal) for ordinal in range(3)])
    )
    world.now.ms += world.settings.park_ms + 1
    world.database.transact(lambda c: deadlines.reconcile(c, world.now(), world.settings))
    letters = [events_pb2.DeadLetter.FromString(row.letter) for row in world.rows(schema.dead)]
    assert len(letters) == 3 and not world.rows(schema.parked)
    request = rs.PutRunRequest(run=world.forge.run(), request_id="first", gateway_epoch=1)
    world.database.transact(lambda c: runs.put(c, request, world.now(), world.settings))
    world.ingest(
        *(Item(letter.subject, letter.payload, 100 + n) for n, letter in enumerate(letters))
    )
    assert len(world.rows(schema.trees)) == 3 and len(world.rows(schema.dead)) == 3


def test_a_row_that_is_nested_too_deeply_takes_no_other_tree_with_it(world: World) -> None:
    deep = world.forge.spec(ordinal=1)
    deep.row_json = '{"a":' * 100_000 + "1" + "}" * 100_000
    world.ingest(world.forge.all_opened([world.forge.spec(), deep, world.forge.spec(ordinal=2)]))
    assert len(world.rows(schema.trees)) == 2 and "row is no JSON" in world.one(schema.dead).reason


def test_a_held_out_row_is_never_opened_for_training(make_world) -> None:
    world: World = make_world()
    held_out = world.forge.spec(ordinal=3)
    world.start(held_out=(held_out.row_digest,))
    world.ingest(world.forge.opened(held_out), world.forge.opened(world.forge.spec(ordinal=4)))
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
    assert [row.reason.split(":")[0] for row in world.rows(schema.dead)] == [
        "INDEX_TAKEN",
        "GROUP_MISMATCH",
    ]


def test_opened_counts_only_groups_without_a_gap(world: World) -> None:
    def opened() -> int:
        return world.database.query(
            lambda c: progress.read(c, world.forge.run_id, world.now())
        ).groups.opened

    world.ingest(
        world.forge.opened(world.forge.spec(1)), world.forge.opened(world.forge.spec(0, 0, size=2))
    )
    assert opened() == 0
    world.ingest(world.forge.opened(world.forge.spec(0, 1, size=2)))
    assert opened() == 2


def test_trees_that_one_transaction_ends_are_one_message(world: World) -> None:
    specs = [world.forge.spec(ordinal, ordinal, size=70) for ordinal in range(70)]
    world.ingest(*(world.forge.opened(spec) for spec in specs))
    epochs = {spec.tree_id: world.claim(spec.tree_id) for spec in specs}
    world.database.transact(lambda c: c.execute(schema.outbox.delete()))
    world.ingest(*(world.forge.grown(tree_id, epoch=epoch) for tree_id, epoch in epochs.items()))
    outbox = world.rows(schema.outbox)
    trees = [
        tree for row in outbox for tree in events_pb2.TreesClosed.FromString(row.payload).trees
    ]
    assert [row.subject for row in outbox] == [f"lineage.{world.forge.run_id}.closed"] * 2
    assert {tree.tree_id for tree in trees} == epochs.keys() and len(trees) == 70
    assert len({row.msg_id for row in outbox}) == 2


def test_a_group_is_closed_only_when_all_its_trees_were_opened(world: World) -> None:
    world.live(world.forge.spec(0, 0, size=2))
    assert world.one(schema.groups).state == 1
    (closed,) = events_pb2.TreesClosed.FromString(world.rows(schema.outbox)[-1].payload).trees
    assert not closed.group_closed
    world.live(world.forge.spec(0, 1, size=2))
    assert world.one(schema.groups).state == 2
    assert (
        events_pb2.TreesClosed.FromString(world.rows(schema.outbox)[-1].payload)
        .trees[0]
        .group_closed
    )
