"""Queries whose answers grow with a run use an index, and never scan or sort all rows."""

import re
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from sqlalchemy import Connection, event

from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.api import lineage
from services.treestore.events.decode import decode
from services.treestore.ingest.item import Item
from services.treestore.loops import deadlines
from services.treestore.queries import trees
from services.treestore.storage.database import Database
from services.treestore.storage.settings import Settings
from services.treestore.training import batches, policies
from services.treestore.unit_of_work.load import load_for
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from tests.treestore.forge import World

_RUN = "quick-00000001"
_QUERIES: dict[str, Callable[[Connection], object]] = {
    "a run's trees, newest first": lambda c: trees.summaries(c, ts.TreeFilter(run_id=_RUN)),
    "a run's trees, in order": lambda c: trees.ids(c, ts.TreeFilter(run_id=_RUN)),
    "whose deadline is over": lambda c: deadlines.is_due(c, 2_000_000, Settings()),
    "what waited too long": lambda c: deadlines.expire_parked(c, 2_000_000, Settings()),
    "a batch": lambda c: batches.read(c, _RUN, 0),
}


def plans(database: Database, work: Callable[[Connection], object]) -> dict[str, str]:
    """Return SQLite's plan of each statement that `work` runs."""
    executed: list[tuple[str, object]] = []

    def note(connection, cursor, statement, parameters, context, executemany) -> None:
        if statement.lstrip().startswith("SELECT"):
            executed.append((statement, parameters))

    def run(connection: Connection) -> dict[str, str]:
        event.listen(connection, "before_cursor_execute", note)
        work(connection)
        event.remove(connection, "before_cursor_execute", note)
        plan_of = (
            (s, connection.exec_driver_sql("EXPLAIN QUERY PLAN " + s, p)) for s, p in executed
        )
        return {s: "; ".join(row[3] for row in rows) for s, rows in plan_of}

    return database.query(run)


def scans(plan_of: dict[str, str], sorts: bool = True) -> list[str]:
    """Return the steps that read all rows of a table, but for that of runs, or sort rows."""
    steps = [step for plan in plan_of.values() for step in plan.split("; ")]
    own = r"SCAN (\d+ )?CONSTANT ROWS?|SCAN \(subquery-\d+\)|SCAN runs"  # a statement's own keys
    looks = [s for s in steps if s.startswith("SCAN") and not re.fullmatch(own, s)]
    return looks + [s for s in steps if sorts and "TEMP B-TREE" in s]


def _load(connection: Connection, items: Sequence[Item], world: World) -> None:
    """Read what a transaction reads to judge the messages."""
    events = [event for i in items for event in decode(i.subject, i.data, i.sequence)[0]]
    load_for(connection, UnitOfWork(world.now(), world.settings), events)


@pytest.fixture
def world(sqlite_template, tmp_path) -> World:
    import shutil

    shutil.copy(sqlite_template, tmp_path / "store.sqlite")
    return World(Database(f"sqlite:///{tmp_path / 'store.sqlite'}").open()).start()


@pytest.mark.parametrize("what", _QUERIES)
def test_an_index_answers(world: World, what: str) -> None:
    plan_of = plans(world.database, _QUERIES[what])
    assert plan_of and not scans(plan_of), plan_of
    world.database.close()


def test_an_index_answers_what_a_message_needs(world: World) -> None:
    """Of several trees with several places each, at every point of their lives."""
    specs = [world.forge.spec(ordinal) for ordinal in range(3)]
    epochs = [world.open(spec) for spec in specs]
    lives = [world.forge.life(s, epoch=e) for s, e in zip(specs, epochs, strict=True)]
    for items in zip(*lives, strict=True):  # each message of all trees at once
        plan_of = plans(world.database, partial(_load, items=items, world=world))
        assert plan_of and not scans(plan_of, sorts=False), plan_of
        world.ingest(*items)
    world.database.close()


def test_the_batches_of_a_tree_are_found_by_the_tree(world: World) -> None:
    spec = world.forge.spec()
    world.live(spec)
    root = world.forge.root(spec)
    plan_of = plans(world.database, lambda c: lineage.consumers(c, root.id))
    assert any("batch_trees" in plan for plan in plan_of.values())
    assert not scans(plan_of, sorts=False), plan_of
    world.database.close()


def test_the_policies_of_a_batch_are_found_by_the_batch(world: World) -> None:
    plan_of = plans(world.database, lambda c: policies.of_batch(c, _RUN, 3))
    assert next(iter(plan_of.values())).startswith(
        "SEARCH policies USING INDEX ix_policies_batch (run_id=? AND batch_ordinal=?)"
    )
    world.database.close()
