"""The cost of an ingest grows with its input, not with its square, nor with texts that it does not
need.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from services.treestore.events.decode import decode
from services.treestore.ingest.transaction import settle
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.unit_of_work import load_parts
from services.treestore.unit_of_work.load import load_for
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from tests.treestore.forge import World
from tests.treestore.work import statements, steps


@pytest.fixture
def small(tmp_path: Path) -> World:
    return World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()


def _calls(work: Callable[[], object]) -> int:
    """Count the calls of functions, and turns of generators, that some work takes."""
    counted = 0

    def note(frame, what, argument) -> None:
        nonlocal counted
        counted += what == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def _opening(world: World, many: int, first: int, **more: int) -> int:
    item = world.forge.all_opened([world.forge.spec(first + n, **more) for n in range(many)])
    events, _ = decode(item.subject, item.data, item.sequence)
    work = UnitOfWork(world.now(), world.settings)
    world.database.query(lambda c: load_for(c, work, events))
    return _calls(lambda: settle(work, events))


@pytest.mark.parametrize("more", [{}, {"last_step": 0}, {"group_take": 1, "size": 2}])
def test_trees_that_open_together_cost_as_much_each_as_alone(
    small: World, more: dict[str, int]
) -> None:
    """This holds for trees that are too old when they come, too, and for those of groups with spare
    trees.
    """
    small.database.transact(lambda c: c.execute(update(schema.runs).values(step=5)))
    few, many = _opening(small, 50, 0, **more), _opening(small, 200, 1000, **more)
    assert many < 5 * few
    small.database.close()


def test_places_are_looked_up_one_by_one(small: World) -> None:
    """A product of trees and parents was looked up before."""
    forge = small.forge
    specs = [forge.spec(ordinal) for ordinal in range(64)]
    small.ingest(forge.all_opened(specs))
    small.ingest(
        *(forge.segments(forge.root(spec), epoch=small.claim(spec.tree_id)) for spec in specs)
    )

    def looked_up(many: int) -> int:
        pairs = {(spec.tree_id, forge.root(spec).id) for spec in specs[:many]}
        work = UnitOfWork(small.now(), small.settings)
        return steps(small.database, lambda c: load_parts.load_headers(c, work, set(), pairs))

    assert looked_up(64) < 5 * looked_up(16)
    small.database.close()


def test_a_score_reads_no_text_of_leaves(world: World) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    *life, last = world.forge.life(spec, epoch=epoch)
    with statements() as executed:
        world.ingest(*life)
        world.ingest(last)
    assert not [s for s in executed if s.startswith("SELECT") and "completion" in s]
    assert len(world.rows(schema.scores)) == 2


def test_a_leaf_keeps_its_text_when_the_tree_is_grown_and_when_it_is_said_again(
    world: World,
) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    event = world.forge.leaf(leaf, epoch=epoch, completion="what it says")
    world.ingest(world.forge.segments(root, leaf, epoch=epoch), event)
    world.ingest(
        world.forge.grown(spec.tree_id, leaf, epoch=epoch)
    )  # a later transaction, which lists the leaf
    row = world.one(schema.leaves)
    assert (row.finished, row.listed, row.completion) == (True, True, "what it says")
