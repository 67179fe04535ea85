"""Brings the embedded mode up on a state folder and takes it down again."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from services.chassis import nats_server
from services.supervisor.child import Child
from services.supervisor.fleet import Fleet
from services.supervisor.state import StateFolder
from services.supervisor.supervisor import Supervisor


@contextlib.asynccontextmanager
async def embedded(
    path: Path, *, join_listen: str = "", extra: Mapping[str, str] | None = None
) -> AsyncIterator[Supervisor]:
    """A running system on `path`. Raises Refused if another supervisor holds the folder."""
    state = StateFolder.open(path)
    state.lock()
    try:
        state.choose_ports()
        config = nats_server.write_config(state.path / "nats", state.address("nats"))
        fleet = Fleet(state, join_listen=join_listen, extra=extra)

        async def broker() -> Child:
            return fleet.nats(config)

        supervisor = Supervisor(fleet, broker)
        try:
            await supervisor.start()
            yield supervisor
        finally:
            await supervisor.stop()
    finally:
        state.unlock()
