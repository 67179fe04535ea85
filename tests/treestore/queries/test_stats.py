"""Counts are kept, not counted: they cost the same at any size, and equal those of counting."""

from pathlib import Path

import pytest
from sqlalchemy import select

from services.treestore.queries import stats
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.unit_of_work import counts
from services.treestore.unit_of_work.rows import CLOSED, DROPPED
from tests.treestore.forge import World
from tests.treestore.older import older
from tests.treestore.work import steps


def _counted(world: World) -> dict[str, int]:
    tables = {
        "segments": schema.segments,
        "leaves": schema.leaves,
        "scores": schema.scores,
        "refused": schema.refused,
    }
    tables |= {
        "late": schema.late,
        "parked": schema.parked,
        "policies": schema.policies,
        "batches": schema.batches,
    }
    counted = {name: len(world.rows(table)) for name, table in tables.items()}
    trees = {
        name: len(world.rows(schema.trees, state=state)) for state, name in counts.STATES.items()
    }
    return counted | trees | {"trees": sum(trees.values())}


def history(world: World) -> None:
    """Ingest trees of all states, with refused, late and parked events."""
    forge = world.forge
    for ordinal in range(3):
        world.live(forge.spec(ordinal))
    spec = forge.spec(3)
    world.open(spec)
    epoch = world.claim(spec.tree_id)
    life = forge.life(spec, epoch=epoch)
    world.ingest(*life[:4])  # it grows
    world.ingest(*life[:2])  # repeated: nothing new
    world.ingest(forge.segments(forge.child(forge.root(spec), 7), epoch=epoch - 1))  # an old claim
    world.ingest(
        forge.segments(forge.child(forge.child(forge.root(spec), 8), 0), epoch=epoch)
    )  # its parent is missing
    world.ingest(forge.score(forge.child(forge.root(forge.spec(0)), 0), 9.0))  # its tree is over
    spec = forge.spec(4)
    world.ingest(*forge.life(spec, epoch=world.open(spec))[:-1])  # one score is owed
    spec = forge.spec(5, max_claims=1)
    world.open(spec)
    world.silence()
    assert world.claim(spec.tree_id) == 0  # NO_PROGRESS: dropped


def test_they_are_what_counting_gives(world: World) -> None:
    history(world)
    kept = world.database.query(lambda c: stats.read(c, world.forge.run_id))
    counted = _counted(world)
    assert {name: kept[name] for name in counted} == counted
    assert (
        counted["refused"] == counted["late"] == counted["parked"] == counted["trees_dropped"] == 1
    )
    assert (
        counted["trees_growing"] == counted["trees_scoring"] == 1 and counted["trees_closed"] == 3
    )
    of_all = world.database.query(lambda c: stats.read(c, ""))
    assert of_all.items() >= counted.items() and of_all["runs"] == 1
    assert all(n == 0 for n in world.database.query(lambda c: stats.read(c, "nobody")).values())


@pytest.mark.parametrize(
    ("reason", "counted"), [("TIMEOUT: no answer in 5 s", 1), ("DEADLINE", 1), ("EXCEPTION: x", 0)]
)
def test_scores_that_another_run_of_the_seed_may_have_are_counted(
    world: World, reason: str, counted: int
) -> None:
    spec = world.forge.spec()
    *life, _ = world.forge.life(spec, width=1, epoch=world.open(spec))
    leaf = world.forge.child(world.forge.root(spec))
    world.ingest(*life, world.forge.score(leaf, None, reason=reason))
    kept = world.database.query(lambda c: stats.read(c, world.forge.run_id))
    assert (kept["scores"], kept[counts.UNREPEATABLE]) == (1, counted)


def test_they_cost_the_same_at_any_size(tmp_path: Path) -> None:
    world = World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()
    history(world)
    before = steps(world.database, lambda c: stats.read(c, world.forge.run_id))
    for ordinal in range(6, 26):
        world.live(world.forge.spec(ordinal))
    assert steps(world.database, lambda c: stats.read(c, world.forge.run_id)) <= before
    world.database.close()


_TREE = (
    "INSERT INTO trees (tree_id, run_id, group_id, tree_index, row_digest, spec, state, claim_node)"
    " VALUES (X'{0:064x}', 'r', 'g', {0}, x'', x'', {1}, 'node-1')"
)
_REFUSED = (
    "INSERT INTO refused (digest, tree_id, segment, winner, payload)"
    " VALUES (x'0{0}', X'{0:064x}', x'', x'', x'0102')"
)


def test_a_store_of_before_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with older(tmp_path / "s.sqlite", "0009", monkeypatch) as database:
        rows = [
            _TREE.format(1, CLOSED),
            _TREE.format(2, CLOSED),
            _TREE.format(3, DROPPED),
            _REFUSED.format(1),
        ]
        rows += [
            "INSERT INTO leaves (tree_id, segment, finished, listed)"
            f" VALUES (X'{1:064x}', x'0{n}', 1, 1)"
            for n in (1, 2)
        ]
        for row in rows:
            database.transact(lambda c, row=row: c.exec_driver_sql(row))
    database = Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()
    kept = database.query(lambda c: stats.read(c, "r"))
    known = {name: count for name, count in kept.items() if count}
    assert known == {"trees_closed": 2, "trees_dropped": 1, "leaves": 2, "trees": 3, "refused": 1}
    refused = schema.refused.c
    [row] = database.query(
        lambda c: list(c.execute(select(refused.run_id, refused.node, refused.bytes)))
    )
    assert tuple(row) == ("r", "node-1", 2)
    database.close()
