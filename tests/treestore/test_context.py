"""Wake-ups after a commit."""

import pytest
from sqlalchemy import Connection

from services.treestore.unit_of_work.context import Context
from services.treestore.unit_of_work.write import record_events
from tests.treestore.forge import World


def _put(connection: Connection) -> None:
    record_events(
        connection, [{"subject": "growth.r", "msg_id": "1", "payload": b"p", "traceparent": ""}]
    )


async def test_the_outbox_is_rung_by_what_put_something_in_and_by_nothing_else(
    world: World,
) -> None:
    rung: list[int] = []
    context = Context(world.database, world.settings, world.now, wake_outbox=lambda: rung.append(1))
    assert await context.write(lambda c: 7) == 7 and not rung

    def fails(connection: Connection) -> None:
        _put(connection)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        await context.write(fails)
    await context.write(lambda c: None)
    assert not rung, "what was rolled back is not told, nor by the next transaction"
    await context.write(_put)
    assert rung == [1]
