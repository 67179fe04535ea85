"""The objects that handlers and loops share."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection

from services.chassis.rpc.health import Liveness
from services.treestore.storage.clock import Clock
from services.treestore.storage.database import Database
from services.treestore.storage.notifier import Notifier
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.write import EVENTS_RECORDED

T = TypeVar("T")
DESIRED = "desired"  # key of waiters for the list of desired processes


def _no_outbox() -> None:
    return None


async def _no_broker(run_id: str) -> None:
    return None


@dataclass(slots=True)
class Context:
    """The shared objects, wired once in `service`.

    database: the database
    settings: settings of the store
    now: the store's clock, in unix milliseconds
    notifier: wakes waiters after a commit
    wake_outbox: makes the outbox publish
    forget: removes everything that the broker holds of a run
    clearing: held while the rest of a finished run is removed, or the run is resumed
    liveness: pulses of the loops
    """

    database: Database
    settings: Settings
    now: Clock
    notifier: Notifier = field(default_factory=Notifier)
    wake_outbox: Callable[[], None] = _no_outbox
    forget: Callable[[str], Awaitable[None]] = _no_broker
    clearing: asyncio.Lock = field(default_factory=asyncio.Lock)
    liveness: Liveness = field(default_factory=Liveness)

    async def write(self, work: Callable[[Connection], T], keys: Iterable[object] = ()) -> T:
        """Run a write transaction; then wake the outbox if it recorded events, and all waiters for
        `keys`.
        """

        def with_flag(connection: Connection) -> tuple[T, bool]:
            connection.info.pop(EVENTS_RECORDED, None)  # of a transaction that failed
            return work(connection), bool(connection.info.pop(EVENTS_RECORDED, False))

        result, recorded = await self.database.write(with_flag)
        if recorded:
            self.wake_outbox()
        self.notifier.notify(keys)
        return result
