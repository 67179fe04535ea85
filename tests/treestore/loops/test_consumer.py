"""The ingester acknowledges after the commit only, and a message that breaks the database's rules
holds up no other.
"""

from dataclasses import dataclass, field

import pytest

from banyan.errors import TemporaryError
from banyan.v1 import events_pb2
from services.treestore.events.events import Event, GrownSegment
from services.treestore.ingest import transaction as ingest_module
from services.treestore.ingest.item import Item
from services.treestore.ingest.rules import Ruling
from services.treestore.ingest.transaction import ingest
from services.treestore.loops import ingester
from services.treestore.loops.ingester import Ingester
from services.treestore.storage import schema
from services.treestore.unit_of_work.context import Context
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from tests.treestore.forge import World


@dataclass
class Told:
    """A delivery that records whether it was acknowledged."""

    item: Item
    acked: list[int] = field(default_factory=list)
    attempts: int = 1

    @property
    def subject(self) -> str:
        return self.item.subject

    @property
    def data(self) -> bytes:
        return self.item.data

    @property
    def sequence(self) -> int:
        return self.item.sequence

    async def ack(self) -> None:
        self.acked.append(self.item.sequence)

    async def nak(self, delay_s: float) -> None:
        raise AssertionError("the ingester lets the broker deliver again by itself")


class Silent:
    """A source without messages."""

    async def fetch(self, batch: int, timeout_s: float) -> list[Told]:
        return []


def _ingester(world: World) -> Ingester:
    return Ingester(Context(world.database, world.settings, world.now), Silent())


async def test_nothing_is_acknowledged_that_is_not_committed(world: World, monkeypatch) -> None:
    deliveries = [Told(world.forge.opened(world.forge.spec(n))) for n in range(3)]

    def full(*args: object) -> None:
        raise TemporaryError("disk is full", reason="STORE_FULL")

    monkeypatch.setattr(ingester, "ingest", full)
    assert not await _ingester(world).store(deliveries)
    assert not any(t.acked for t in deliveries) and not world.rows(schema.trees)
    monkeypatch.setattr(ingester, "ingest", ingest)
    assert await _ingester(world).store(deliveries)
    assert all(t.acked for t in deliveries) and len(world.rows(schema.trees)) == 3


async def test_a_message_that_breaks_the_ingest_is_buried_alone(world: World, monkeypatch) -> None:
    deliveries = [Told(world.forge.opened(world.forge.spec(n))) for n in range(3)]

    def fragile(connection, items, now_ms, settings):
        if any(item.sequence == deliveries[1].sequence for item in items):
            raise ZeroDivisionError("a bug")
        return ingest(connection, items, now_ms, settings)

    monkeypatch.setattr(ingester, "ingest", fragile)
    assert await _ingester(world).store(deliveries)
    assert len(world.rows(schema.trees)) == 2 and all(t.acked for t in deliveries)
    assert world.one(schema.dead).reason == "ZeroDivisionError: a bug"


async def test_a_parked_event_that_breaks_the_ingest_is_buried_and_not_who_releases_it(
    world: World, monkeypatch
) -> None:
    forge, spec = world.forge, world.forge.spec()
    epoch = world.open(spec)
    root = forge.root(spec)
    child = forge.child(root, 7)
    world.ingest(
        forge.segments(child, epoch=epoch), forge.segments(forge.child(root, 8), epoch=epoch)
    )
    assert len(world.rows(schema.parked)) == 2
    judge, bad = ingest_module.judge, {child.id}

    def fragile(work: UnitOfWork, event: Event) -> Ruling:
        if (
            isinstance(event, GrownSegment)
            and event.segment.id in bad
            and event.segment.parent in work.headers
        ):
            raise ZeroDivisionError("a bug")
        return judge(work, event)

    monkeypatch.setattr(ingest_module, "judge", fragile)
    released = Told(forge.segments(root, epoch=epoch))
    assert await _ingester(world).store([released]) and released.acked
    assert len(world.rows(schema.segments)) == 2 and not world.rows(schema.parked)
    letter = events_pb2.DeadLetter.FromString(world.one(schema.dead).letter)
    assert letter.reason == "ZeroDivisionError: a bug"
    (segment,) = events_pb2.SegmentsGrown.FromString(letter.payload).segments
    assert segment.segment.id == child.id

    other = forge.spec(1)
    epoch, root = world.open(other), forge.root(other)
    bad.add(forge.child(root).id)
    both = Told(
        forge.segments(forge.child(root), root, epoch=epoch)
    )  # it waits, and is released within its message
    assert await _ingester(world).store([both]) and both.acked
    assert len(world.rows(schema.segments)) == 2 and len(world.rows(schema.dead)) == 2


@pytest.mark.parametrize("error", [TemporaryError("x"), OSError("x")])
async def test_a_burial_that_fails_acknowledges_nothing(
    world: World, monkeypatch, error: Exception
) -> None:
    deliveries = [Told(world.forge.opened(world.forge.spec()))]

    def broken(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    def cannot(*args: object) -> None:
        raise error

    monkeypatch.setattr(ingester, "ingest", broken)
    monkeypatch.setattr(ingester, "flush", cannot)
    if isinstance(error, TemporaryError):
        assert not await _ingester(world).store(deliveries)
    else:
        with pytest.raises(OSError, match="x"):
            await _ingester(world).store(deliveries)
    assert not deliveries[0].acked
