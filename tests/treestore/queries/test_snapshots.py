"""All statements of a read see one state of the database, whatever is committed between them."""

import pytest
from sqlalchemy import Connection, func, insert, select
from sqlalchemy.exc import DBAPIError

from banyan.errors import TemporaryError
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.queries import transcripts
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from tests.treestore.forge import World

_COUNT = select(func.count()).select_from(schema.dead)
_LETTER = {"service": "s", "stream": "S", "sequence": 1, "letter": b""}


def test_the_statements_of_a_read_see_one_state(database: Database) -> None:
    def work(connection: Connection) -> tuple[int, int]:
        before = connection.scalar(_COUNT)
        database.transact(lambda c: c.execute(insert(schema.dead), [_LETTER]))
        return before, connection.scalar(_COUNT)

    assert database.query(work) == (0, 0)
    assert database.query(lambda c: c.scalar(_COUNT)) == 1, "the next read sees it"


def test_leaves_are_read_beside_an_ingest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their segments, read first, are those of the leaves, read last, though a batch of both comes
    in between.
    """
    spec = world.forge.spec()
    epoch = world.open(spec)
    life = world.forge.life(spec, epoch=epoch)
    leaf = world.forge.child(world.forge.root(spec), 0)
    rows_in, late = transcripts.rows_in, [life]

    def meanwhile(connection, table, *more, **equal):
        if table is schema.leaves and late:
            world.ingest(*late.pop())
        return rows_in(connection, table, *more, **equal)

    monkeypatch.setattr(transcripts, "rows_in", meanwhile)
    key = ts.LeafKey(
        tree_id=spec.tree_id, leaf={"segment": leaf.id, "end": len(leaf)}, claim_epoch=epoch
    )
    assert world.database.query(lambda c: transcripts.read(c, [key])) == []
    assert [t.completion for t in world.database.query(lambda c: transcripts.read(c, [key]))] == [
        "<0>"
    ]


def test_a_read_cannot_write(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.treestore.storage.database.PATIENCE_S", 0.0)
    with pytest.raises((TemporaryError, DBAPIError), match=r"read-?only"):
        database.query(lambda c: c.execute(insert(schema.dead), [_LETTER]))
