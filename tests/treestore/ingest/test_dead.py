"""Dead letters, as they are listed and replayed."""

import pytest

from banyan.errors import NotFound, Refused
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control import dead_letters as stored_letters
from services.treestore.ingest import dead_letters
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from tests.treestore.forge import World

MIB = 1 << 20


def _store(world: World, sizes: list[int]) -> None:
    letters = [
        events_pb2.DeadLetter(
            stream="LINEAGE",
            subject="lineage.x.leaf",
            sequence=n,
            payload=b"x" * size,
            reason="r" * 5000,
        )
        for n, size in enumerate(sizes, 1)
    ]
    world.database.transact(
        lambda c: dead_letters.store(c, letters, 0, Settings(kept_bytes=1 << 30))
    )


def test_a_list_of_large_letters_fits_an_answer(world: World) -> None:
    """The newest letters have their messages, the others only the size."""
    _store(world, [MIB] * 100)
    listed = world.database.query(lambda c: stored_letters.read(c, rs.ReadDeadRequest())).letters
    assert [len(stored.letter.payload) for stored in listed] == [MIB] * 4 + [0] * 96
    assert {stored.payload_bytes for stored in listed} == {MIB}
    assert [stored.id for stored in listed] == list(range(100, 0, -1))
    assert {len(stored.letter.reason) for stored in listed} == {1000}


def test_a_letter_without_its_message_is_not_replayed_and_says_why(world: World) -> None:
    _store(world, [3, 0])
    world.database.transact(lambda c: stored_letters.replay(c, 1))
    assert world.one(schema.outbox).payload == b"xxx"
    with pytest.raises(Refused, match=r"letter 2 cannot be replayed.*sequence 2 of LINEAGE"):
        world.database.transact(lambda c: stored_letters.replay(c, 2))
    with pytest.raises(NotFound, match="no dead letter 3"):
        world.database.transact(lambda c: stored_letters.replay(c, 3))
