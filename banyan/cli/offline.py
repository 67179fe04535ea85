"""Commands on a run while nothing runs: the services of all runs are started for a moment, and stopped again."""

import asyncio
from pathlib import Path

from banyan.client import Client
from banyan.v1 import runstore_service_pb2 as rs


def cancelled(state: Path, run_id: str, cause: str) -> rs.Run:
    """Cancels a run that is not over."""
    return asyncio.run(_cancelled(state, run_id, cause))


async def _cancelled(state: Path, run_id: str, cause: str) -> rs.Run:
    from services.supervisor.embedded import embedded

    async with embedded(state) as supervisor:
        folder = supervisor.fleet.state

        def ask() -> rs.Run:
            with Client(folder.address("treestore"), folder.address("gateway"), secret=folder.secret) as client:
                return client.cancel(run_id, cause)

        return await asyncio.to_thread(ask)
