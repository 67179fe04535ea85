"""Commands on a run while nothing runs: the services of all runs are started for a moment, and stopped again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from banyan.cli.runs import removal
from banyan.client import Client
from banyan.v1 import runstore_service_pb2 as rs

T = TypeVar("T")


def cancelled(state: Path, run_id: str, cause: str) -> rs.Run:
    """Cancels a run that is not over."""
    return asyncio.run(_cancelled(state, run_id, cause))


async def _cancelled(state: Path, run_id: str, cause: str) -> rs.Run:
    return await _asked(state, lambda client: client.cancel(run_id, cause))


def removed(state: Path, run: rs.Run, keep: "rs.Kept.ValueType") -> int:
    """Removes a run that is over; the rows that went."""
    return asyncio.run(_asked(state, lambda client: removal.remove(client, state, run, keep)))


async def _asked(state: Path, ask: Callable[[Client], T]) -> T:
    from services.supervisor.embedded import embedded

    async with embedded(state) as supervisor:
        folder = supervisor.fleet.state

        def through() -> T:
            with Client(
                folder.address("treestore"), folder.address("gateway"), secret=folder.secret
            ) as client:
                return ask(client)

        return await asyncio.to_thread(through)
