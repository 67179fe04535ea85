"""The outbox publishes in order, again after a failure, and is never stuck at an event that cannot
go out.
"""

import asyncio
import contextlib

import pytest
from sqlalchemy import insert

from banyan.errors import DeadlineMissed, InvalidInput, TemporaryError
from services.treestore.loops import outbox as outbox_module
from services.treestore.loops.outbox import Outbox, read_events, read_letters
from services.treestore.storage import schema
from tests.treestore.forge import World


class Log:
    """A log that takes events, or fails as a test says."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.down = False
        self.full = False  # of dead letters

    async def publish_bytes(
        self,
        subject: str,
        data: bytes,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        if self.down or (self.full and subject.startswith("dead.")):
            raise DeadlineMissed("no ack")
        if subject == "forbidden":
            raise InvalidInput("the broker refuses it")
        self.said.append((subject, msg_id))
        return len(self.said)


def _put(world: World, *subjects: str, first: int = 0) -> None:
    rows = [
        {"subject": s, "msg_id": str(n), "payload": b"p", "traceparent": ""}
        for n, s in enumerate(subjects, first)
    ]
    world.database.transact(lambda c: c.execute(insert(schema.outbox), rows))


async def test_events_go_out_in_order(world: World) -> None:
    log = Log()
    subjects = ["train.r.batch", "growth.r", "growth.r", "train.r.policy", "lineage.r.closed"]
    _put(world, *subjects)
    outbox = Outbox(world.database, log)
    assert await outbox.publish_events(world.database.query(read_events)) == 5
    assert [s for s, _ in log.said] == subjects
    await outbox.remove_published()
    assert not world.rows(schema.outbox)


async def test_published_rows_go_with_the_next_write_and_only_they(
    world: World, eventually, monkeypatch
) -> None:
    log = Log()
    monkeypatch.setattr(outbox_module, "_QUIET_S", 60.0)
    outbox = Outbox(world.database, log)
    task = asyncio.ensure_future(outbox.run())
    for number in range(3):
        _put(world, "train.r.batch", first=number)  # which removes the row before
        outbox.wake()
        await eventually(lambda number=number: len(log.said) == number + 1)
        assert [row.msg_id for row in world.rows(schema.outbox)] == [str(number)]
    await _cancelled(task)
    await outbox.leave()
    assert not world.rows(schema.outbox) and len(log.said) == 3


async def test_published_rows_go_by_themselves_where_no_write_follows(
    world: World, eventually
) -> None:
    log = Log()
    _put(world, "train.r.batch")
    task = asyncio.ensure_future(Outbox(world.database, log).run())
    await eventually(lambda: not world.rows(schema.outbox))
    assert len(log.said) == 1
    await _cancelled(task)


async def test_a_write_that_fails_removes_nothing_and_the_next_one_does(world: World) -> None:
    log = Log()
    _put(world, "train.r.batch")
    outbox = Outbox(world.database, log)
    await outbox.publish_events(world.database.query(read_events))
    with pytest.raises(ZeroDivisionError):
        world.database.transact(lambda c: 1 // 0)
    assert len(world.rows(schema.outbox)) == 1
    world.database.transact(lambda c: None)
    assert not world.rows(schema.outbox)


async def test_a_number_that_is_given_again_is_another_event(world: World) -> None:
    """SQLite numbers from one again once a table is empty."""
    log = Log()
    outbox = Outbox(world.database, log)
    _put(world, "train.r.batch")
    await outbox.publish_events(world.database.query(read_events))
    table = schema.outbox
    with world.database._writer.begin() as connection:  # as a commit whose answer was lost
        connection.execute(table.delete())
        row = {
            "n": 1,
            "subject": "train.r.policy",
            "msg_id": "p",
            "payload": b"",
            "traceparent": "",
        }
        connection.execute(insert(table), row)
    await outbox.remove_published()
    assert [row.msg_id for row in world.rows(table)] == ["p"]
    await outbox._publish_all()
    assert [subject for subject, _ in log.said] == ["train.r.batch", "train.r.policy"]


async def test_many_events_go_out_behind_some_that_are_there_still(world: World) -> None:
    log = Log()
    outbox = Outbox(world.database, log)
    _put(world, *["train.r.batch"] * 150)
    await outbox.publish_events(world.database.query(read_events))
    with world.database._writer.begin() as connection:  # a write that removes nothing
        rows = [
            {"subject": "train.r.policy", "msg_id": f"p{n}", "payload": b"", "traceparent": ""}
            for n in range(300)
        ]
        connection.execute(insert(schema.outbox), rows)
    await outbox._publish_all()
    assert len(log.said) == 450 and len(set(log.said)) == 450


async def _cancelled(task: "asyncio.Future[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_events_wait_for_the_log_and_are_drained_at_start(world: World, eventually) -> None:
    log = Log()
    log.down = True
    _put(world, "train.r.batch", "train.r.policy")
    outbox = Outbox(world.database, log)
    assert (
        await outbox.publish_events(world.database.query(read_events)) == 0
        and len(world.rows(schema.outbox)) == 2
    )
    log.down = False
    task = asyncio.ensure_future(Outbox(world.database, log).run())  # without a wake-up
    await eventually(lambda: len(log.said) == 2)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_an_event_that_cannot_go_out_holds_up_nobody(world: World) -> None:
    log = Log()
    _put(world, "train.r.batch", "forbidden", "train.r.policy")
    assert await Outbox(world.database, log).publish_events(world.database.query(read_events)) == 3
    assert [s for s, _ in log.said] == ["train.r.batch", "train.r.policy"]
    assert world.one(schema.dead).stream == "OUTBOX"


async def test_a_database_that_cannot_write_for_a_while_stops_nothing(
    world: World, eventually, monkeypatch
) -> None:
    log = Log()
    _put(world, "train.r.batch")
    outbox = Outbox(world.database, log)
    write, failures = world.database.write, iter(range(1))

    async def full(work):
        if next(failures, None) is not None:
            raise TemporaryError("disk is full", reason="STORE_FULL")
        return await write(work)

    monkeypatch.setattr(world.database, "write", full)
    task = asyncio.ensure_future(outbox.run())
    await eventually(lambda: not world.rows(schema.outbox), 30.0)
    assert len(log.said) == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_letters_that_the_log_does_not_take_hold_up_no_event(world: World) -> None:
    log = Log()
    log.full = True
    _put(world, *["dead.LINEAGE"] * 300, "growth.r", "lineage.r.closed")
    outbox = Outbox(world.database, log)
    assert await outbox.publish_events(world.database.query(read_events)) == 2 and [
        s for s, _ in log.said
    ] == [
        "growth.r",
        "lineage.r.closed",
    ]
    await outbox.remove_published()
    assert (
        await outbox.publish_letters(world.database.query(read_letters)) == 0
        and len(world.rows(schema.outbox)) == 300
    )
    log.full = False
    assert await outbox.publish_letters(world.database.query(read_letters)) == 0, (
        "after a failure letters rest"
    )
    outbox = Outbox(world.database, log)
    while await outbox.publish_letters(world.database.query(read_letters)):
        pass
    assert not world.rows(schema.outbox) and len(log.said) == 302
