"""Rows that were not loaded are told from rows that do not exist."""

from pathlib import Path

import pytest

from services.treestore.events.decode import decode
from services.treestore.ingest.transaction import settle
from services.treestore.storage.database import Database
from services.treestore.unit_of_work.load import load_for, load_trees, load_whole
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from tests.treestore.forge import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()


def test_leaves_of_a_tree_that_was_not_loaded_are_refused(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    work = UnitOfWork(world.now(), world.settings)
    world.database.query(lambda c: load_trees(c, work, [spec.tree_id]))
    with pytest.raises(RuntimeError, match=f"of tree {spec.tree_id.hex()[:12]} were not loaded"):
        work.part(spec.tree_id)
    world.database.query(lambda c: load_whole(c, work, [spec.tree_id]))
    assert work.part(spec.tree_id).leaves == {}


def test_a_tree_knows_the_scorers_of_its_group_from_its_opening_on(world: World) -> None:
    spec = world.forge.spec(scorers=["number", "majority"], group_scorers=["majority"])
    item = world.forge.opened(spec)
    events, _ = decode(item.subject, item.data, item.sequence)
    work = UnitOfWork(world.now(), world.settings)
    world.database.query(lambda c: load_for(c, work, events))
    settle(work, events)
    assert work.part(spec.tree_id).groups == ("majority",)
