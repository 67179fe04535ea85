"""Removal of a run: refused while it may go on, in parts between which it may be killed, and
without touching other runs.
"""

from typing import Any

import pytest
from sqlalchemy import Table, select, update

from banyan.errors import NotFound, Refused
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control import removal, runs
from services.treestore.queries import stats
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from tests.treestore.forge import Forge, World
from tests.treestore.queries.test_stats import history

_OTHER = "other-00000002"
_TOKENIZER = b"tokenizer"
_STORE = {"meta", "outbox", "alembic_version"}  # of no run
_BY_TREE = {"segments", "leaves", "scores", "rescores", "plans", "effects", "blobs", "rooms"}


def _second(world: World) -> World:
    """Store another run."""
    other = World(world.database, Forge(_OTHER), world.settings, world.now)
    request = rs.PutRunRequest(run=other.forge.run(), request_id="second", gateway_epoch=1)
    world.database.transact(lambda c: runs.put(c, request, world.now(), world.settings))
    return other


def _rows_of(world: World, run_id: str) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of a run, by table."""
    trees = select(schema.trees.c.tree_id).where(schema.trees.c.run_id == run_id)

    named = select(schema.runs.c.tokenizer).where(schema.runs.c.run_id == run_id)

    def of(table: Table) -> list[tuple[object, ...]]:
        if table is schema.tokenizers:
            mine = table.c.digest.in_(named)
        else:
            mine = (
                table.c.tree_id.in_(trees) if table.name in _BY_TREE else table.c.run_id == run_id
            )
        return world.database.query(
            lambda c: sorted((tuple(row) for row in c.execute(select(table).where(mine))), key=repr)
        )

    return {t.name: of(t) for t in schema.metadata.tables.values() if t.name not in _STORE}


def _fill(world: World) -> None:
    """Insert rows into every table that a run may have rows in."""
    history(world)
    run_id = world.forge.run_id
    tree = world.rows(schema.trees, run_id=run_id)[3].tree_id
    _name_tokenizer(world, run_id)
    rows: dict[Table, dict[str, Any]] = {
        schema.tokenizers: {"digest": _TOKENIZER, "data": b"{}"},
        schema.blobs: {"digest": tree, "tree_id": tree, "data": b"1"},
        schema.rooms: {"tree_id": tree, "final": False},
        schema.rescores: {"tree_id": tree, "segment": b"", "settings_digest": b""},
        schema.plans: {"tree_id": tree, "record": b""},
        schema.effects: {"action": tree, "tree_id": tree, "answer": b""},
        schema.desired: {"run_id": run_id, "service": "learner"},
        schema.processes: {"run_id": run_id, "service": "learner", "replica": 0, "report": b""},
        schema.batches: {"run_id": run_id, "ordinal": 0, "group_ids": "[]", "dropped": "[]"},
        schema.batch_trees: {"run_id": run_id, "tree_id": tree, "use": "train"},
        schema.batch_replays: {"run_id": run_id, "tree_id": tree, "segment": b""},
        schema.policies: {"run_id": run_id, "digest": b"", "published": b"", "abandoned": False},
        schema.counts: {"run_id": run_id, "name": "policies", "count": 1},
        schema.allocations: {"run_id": run_id, "ordinal": 0, "record": b""},
        schema.tokens: {"token_hash": run_id.encode(), "run_id": run_id},
        schema.members: {"run_id": run_id, "node_id": "node-1", "joined": True},
        schema.dead: {
            "service": run_id,
            "stream": "S",
            "letter": b"",
            "digest": b"",
            "run_id": run_id,
        },
    }
    for table, values in rows.items():
        world.database.transact(lambda c, t=table, v=values: c.execute(t.insert().values(**v)))
    assert all(_rows_of(world, run_id).values()), "a table was forgotten"


def _name_tokenizer(world: World, run_id: str) -> None:
    named = update(schema.runs).where(schema.runs.c.run_id == run_id).values(tokenizer=_TOKENIZER)
    world.database.transact(lambda c: c.execute(named))


def _end(world: World, state: int = rs.RUN_STATE_FAILED) -> None:
    over = update(schema.runs).where(schema.runs.c.run_id == world.forge.run_id).values(state=state)
    world.database.transact(lambda c: c.execute(over))


def _step(database: Database, run_id: str, keep: int = rs.KEPT_UNSPECIFIED) -> tuple[bool, int]:
    return database.transact(lambda c: removal.step(c, run_id, keep))


@pytest.mark.parametrize("state", [rs.RUN_STATE_TRAINING, rs.RUN_STATE_PAUSED])
def test_a_run_that_may_go_on_is_refused_by_name(world: World, state: int) -> None:
    _end(world, state)
    name = rs.RunState.Name(state).removeprefix("RUN_STATE_")
    with pytest.raises(
        Refused, match=f"{world.forge.run_id} is {name} .*banyan runs cancel {world.forge.run_id}"
    ):
        _step(world.database, world.forge.run_id)
    assert world.one(schema.runs).removed == 0
    with pytest.raises(NotFound):
        _step(world.database, "nobody")


def test_nothing_of_it_is_left_and_nothing_of_another_goes(world: World) -> None:
    other = _second(world)
    _fill(world)
    history(other)
    _end(world)
    before = _rows_of(world, _OTHER)
    assert _step(world.database, world.forge.run_id)[0]
    assert not any(_rows_of(world, world.forge.run_id).values())
    assert _rows_of(world, _OTHER) == before
    for table in (
        schema.segments,
        schema.leaves,
        schema.scores,
        schema.rescores,
        schema.plans,
        schema.blobs,
        schema.rooms,
    ):
        owned = select(schema.trees.c.tree_id)
        assert not world.database.query(
            lambda c, t=table, o=owned: list(c.execute(select(t).where(t.c.tree_id.not_in(o))))
        )


def test_a_tokenizer_goes_with_the_last_run_that_names_it(world: World) -> None:
    other = _second(world)
    _fill(world)
    _name_tokenizer(world, _OTHER)
    for run_id, left in ((world.forge.run_id, 1), (_OTHER, 0)):
        over = (
            update(schema.runs)
            .where(schema.runs.c.run_id == run_id)
            .values(state=rs.RUN_STATE_FAILED)
        )
        world.database.transact(lambda c, over=over: c.execute(over))
        assert _step(world.database, run_id)[0]
        assert len(other.rows(schema.tokenizers)) == left


def test_it_goes_in_small_transactions_and_goes_on_after_a_stop(
    world: World, address: str, monkeypatch
) -> None:
    _fill(world)
    _end(world)
    monkeypatch.setattr(removal, "_ROWS", 7)
    world.database.close()
    parts, done = [], False
    while not done:
        database = Database(address).open()  # a process of its own each time
        assert database.query(lambda c: runs.read(c, world.forge.run_id, 0)).run.run_id
        done, rows = _step(database, world.forge.run_id)
        parts.append(rows)
        database.close()
    assert len(parts) > 5 and max(parts) < 7 + 5, (
        "the last tree of a part may have some segments more"
    )
    world.database = Database(address).open()
    assert not any(_rows_of(world, world.forge.run_id).values())
    world.database.close()


@pytest.mark.parametrize("keep", [rs.KEPT_METRICS, rs.KEPT_TREES])
def test_what_is_to_be_kept_stays(world: World, keep: int) -> None:
    _fill(world)
    _end(world)
    before = _rows_of(world, world.forge.run_id)
    assert _step(world.database, world.forge.run_id, keep)[0]
    left = {name for name, rows in _rows_of(world, world.forge.run_id).items() if rows}
    metrics = {
        "runs",
        "tokenizers",
        "tallies",
        "counts",
        "policies",
        "batches",
        "allocations",
        "members",
        "grown",
    }
    trees = {
        "trees",
        "segments",
        "leaves",
        "scores",
        "rescores",
        "effects",
        "plans",
        "groups",
        "batch_trees",
        "batch_replays",
    }
    assert left == (metrics | trees if keep == rs.KEPT_TREES else metrics)
    after = _rows_of(world, world.forge.run_id)
    same = (left - {"runs", "counts"}) | ({"counts"} if keep == rs.KEPT_TREES else set())
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    counted = world.database.query(lambda c: stats.read(c, world.forge.run_id))
    assert counted["segments"] == len(after["segments"]) and counted["trees"] == len(after["trees"])
    assert _step(world.database, world.forge.run_id)[0] and not any(
        _rows_of(world, world.forge.run_id).values()
    )


def test_a_run_of_which_something_is_gone_does_not_go_on(world: World) -> None:
    _end(world)
    world.database.transact(lambda c: removal.begin(c, world.forge.run_id, rs.KEPT_METRICS))
    move = rs.MoveRunRequest(
        run_id=world.forge.run_id,
        gateway_epoch=1,
        from_state=rs.RUN_STATE_FAILED,
        to_state=rs.RUN_STATE_PAUSED,
    )
    with pytest.raises(Refused, match="was removed"):
        world.database.transact(lambda c: runs.move(c, move, world.now(), world.settings))
