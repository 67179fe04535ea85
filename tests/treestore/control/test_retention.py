"""Rows caused by rejected events are bounded by run and by node: a hostile node can neither fill
the disk nor displace others.
"""

from collections.abc import Callable

import pytest
from sqlalchemy import Table

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from services.treestore.control import runs
from services.treestore.ingest import dead_letters
from services.treestore.ingest.item import Item
from services.treestore.queries import stats
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work import retention
from tests.treestore.forge import World

_MOST = 5
_FLOOD = 12


@pytest.fixture
def narrow(database: Database) -> World:
    return World(database, settings=Settings(kept_rows=_MOST)).start()


def _tree(world: World, ordinal: int, node: str) -> tuple[tree_pb2.TreeSpec, int]:
    """Open a tree for a node, with a root and a branch."""
    spec = world.forge.spec(ordinal)
    world.ingest(world.forge.opened(spec))
    epoch = world.claim(spec.tree_id, node)
    root = world.forge.root(spec)
    world.ingest(world.forge.segments(root, world.forge.child(root), epoch=epoch))
    return spec, epoch


def _taken(world: World, spec: tree_pb2.TreeSpec, epoch: int, n: int) -> Item:
    return world.forge.segments(
        world.forge.child(world.forge.root(spec), text=f"other {n}", length=5 + n), epoch=epoch
    )


def _orphan(world: World, spec: tree_pb2.TreeSpec, epoch: int, n: int) -> Item:
    absent = world.forge.child(world.forge.root(spec), 100 + n)
    return world.forge.segments(world.forge.child(absent), epoch=epoch)


def _impossible(world: World, spec: tree_pb2.TreeSpec, epoch: int, n: int) -> Item:
    return world.forge.segments(
        world.forge.child(world.forge.root(spec), 1 + n, fork=99), epoch=epoch
    )


_NONSENSE = {schema.refused: _taken, schema.parked: _orphan, schema.dead: _impossible}


@pytest.mark.parametrize("table", _NONSENSE, ids=str)
@pytest.mark.parametrize("together", [True, False])
def test_a_node_fills_its_own_room_and_nobody_elses(
    narrow: World, table: Table, together: bool
) -> None:
    make: Callable[..., Item] = _NONSENSE[table]
    hostile, epoch = _tree(narrow, 0, "hostile")
    honest, other = _tree(narrow, 1, "honest")
    flood = [make(narrow, hostile, epoch, n) for n in range(_FLOOD)]
    for items in [flood] if together else [[item] for item in flood]:
        narrow.ingest(*items)
    narrow.ingest(make(narrow, honest, other, 0))
    nodes = [row.node for row in narrow.rows(table)]
    assert sorted(nodes) == ["honest", *["hostile"] * _MOST]
    counts = narrow.database.query(lambda c: stats.read(c, narrow.forge.run_id))
    assert counts[retention.THROWN_AWAY] == _FLOOD - _MOST
    letters_out = [row for row in narrow.rows(schema.outbox) if row.subject.startswith("dead.")]
    assert len(letters_out) == (_MOST + 1 if table is schema.dead else 0), (
        "a letter that is not kept is not said"
    )


def test_messages_of_which_nobody_knows_whose_they_are_have_a_room_of_their_own(
    narrow: World,
) -> None:
    honest, epoch = _tree(narrow, 1, "honest")
    subject = f"lineage.{narrow.forge.run_id}.segment"
    narrow.ingest(*(Item(subject, b"\xff" + bytes([n]), 1000 + n) for n in range(_FLOOD)))
    old = [
        narrow.forge.segments(narrow.forge.child(narrow.forge.root(honest), 50 + n), epoch=epoch)
        for n in range(_FLOOD)
    ]
    narrow.claim(honest.tree_id, "honest")
    narrow.ingest(*old)  # of a claim that is over: not of the node that claims the tree now
    narrow.ingest(_impossible(narrow, honest, epoch + 1, 0), _taken(narrow, honest, epoch + 1, 0))
    assert sorted(row.node for row in narrow.rows(schema.dead)) == [*[""] * _MOST, "honest"]
    assert sorted(row.node for row in narrow.rows(schema.refused)) == [*[""] * _MOST, "honest"]


def test_late_scores_are_bounded(narrow: World) -> None:
    spec = narrow.forge.spec()
    narrow.live(spec)
    leaf = narrow.forge.child(narrow.forge.root(spec), 0)
    narrow.ingest(*(narrow.forge.score(leaf, 2.0 + n) for n in range(_FLOOD)))
    assert len(narrow.rows(schema.late)) == _MOST


def test_many_nodes_together_have_the_bound_of_their_run(narrow: World) -> None:
    for node in range(retention.NODES + 1):
        spec, epoch = _tree(narrow, node, f"node-{node}")
        narrow.ingest(*(_taken(narrow, spec, epoch, n) for n in range(_FLOOD)))
    assert len(narrow.rows(schema.refused)) == retention.NODES * _MOST


def test_few_large_rows_fill_a_room_too(database: Database) -> None:
    world = World(database, settings=Settings(kept_bytes=4000)).start()
    spec, epoch = _tree(world, 0, "hostile")
    world.ingest(*(_taken(world, spec, epoch, 100 + n) for n in range(_FLOOD)))
    sizes = [len(row.payload) for row in world.rows(schema.refused)]
    assert 0 < len(sizes) < _FLOOD and sum(sizes) <= 4000
    assert sizes == [row.bytes for row in world.rows(schema.refused)]


def test_letters_of_other_services_are_bounded_and_those_that_come_again_take_no_room(
    narrow: World,
) -> None:
    subject = f"lineage.{narrow.forge.run_id}.leaf"
    items = [Item("dead.LINEAGE", _letter(subject, n), n) for n in range(_FLOOD)]
    letters = [dead_letters.letter_of(item) for item in items]
    for _ in range(2):
        narrow.database.transact(lambda c: dead_letters.store(c, letters, 0, narrow.settings))
    assert len(narrow.rows(schema.dead, run_id=narrow.forge.run_id)) == _MOST
    before = narrow.database.query(lambda c: stats.read(c, ""))[retention.THROWN_AWAY]
    narrow.database.transact(lambda c: dead_letters.store(c, letters[:_MOST], 0, narrow.settings))
    assert narrow.database.query(lambda c: stats.read(c, ""))[retention.THROWN_AWAY] == before


def _letter(subject: str, sequence: int) -> bytes:
    from banyan.v1 import events_pb2

    letter = events_pb2.DeadLetter(
        stream="LINEAGE", subject=subject, sequence=sequence, service="verifier", reason="r"
    )
    return letter.SerializeToString()


def test_a_store_that_is_built_up_from_the_log_waits_for_its_run_without_a_bound(
    database: Database,
) -> None:
    world = World(database, settings=Settings(kept_rows=_MOST))
    database.transact(runs.take_gateway_epoch)
    specs = [world.forge.spec(ordinal) for ordinal in range(_FLOOD)]
    world.ingest(world.forge.all_opened(specs))
    assert len(world.rows(schema.parked)) == _FLOOD
    request = rs.PutRunRequest(run=world.forge.run(), request_id="first", gateway_epoch=1)
    database.transact(lambda c: runs.put(c, request, world.now(), world.settings))
    assert len(world.rows(schema.trees)) == _FLOOD and not world.rows(schema.parked)
