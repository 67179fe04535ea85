"""What handlers and loops share: the database, the clock, the settings, and who is woken after a commit."""

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
from services.treestore.unit_of_work.write import TOLD

T = TypeVar("T")
DESIRED = "desired"  # key of those who wait for the list of desired processes


def _nobody() -> None:
    return None


async def _nowhere(run_id: str) -> None:
    return None


@dataclass(slots=True)
class Context:
    """Wired once, in service.py."""

    database: Database
    settings: Settings
    now: Clock
    notifier: Notifier = field(default_factory=Notifier)
    ring: Callable[[], None] = _nobody  # of the outbox
    forget: Callable[[str], Awaitable[None]] = _nowhere  # takes what the broker holds of a run away
    clearing: asyncio.Lock = field(
        default_factory=asyncio.Lock
    )  # while a run that is over is cleared away, or taken back
    liveness: Liveness = field(default_factory=Liveness)

    async def write(self, work: Callable[[Connection], T], keys: Iterable[object] = ()) -> T:
        """A write transaction; then the outbox is rung if it put something in, and those who wait for the keys are woken."""

        def noted(connection: Connection) -> tuple[T, bool]:
            connection.info.pop(TOLD, None)  # of a transaction that failed
            return work(connection), bool(connection.info.pop(TOLD, False))

        result, told = await self.database.write(noted)
        if told:
            self.ring()
        self.notifier.notify(keys)
        return result
