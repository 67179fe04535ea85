"""Brings the embedded mode up on a state folder and takes it down again."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from banyan.errors import InvalidInput
from services.gateway.join import credentials, tls
from services.supervisor.child import Child
from services.supervisor.fleet import Fleet
from services.supervisor.state import HOST, StateFolder
from services.supervisor.supervisor import Supervisor


@contextlib.asynccontextmanager
async def embedded(
    path: Path, *, join_listen: str = "", extra: Mapping[str, str] | None = None
) -> AsyncIterator[Supervisor]:
    """A running system on `path`. With `join_listen`, host:port, gateway and NATS are open to nodes that join, with TLS.

    Raises Refused if another supervisor holds the folder, InvalidInput for an address that cannot be.
    """
    state = StateFolder.open(path)
    state.lock()
    try:
        state.choose_ports()
        fleet = Fleet(state, join_listen=join_listen, nats_host=_host(join_listen), extra=extra)
        config = _nats_config(fleet)

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


def _host(join_listen: str) -> str:
    host, separator, port = join_listen.rpartition(":")
    if join_listen and (not host or not separator or not port.isdigit()):
        raise InvalidInput(f"--listen {join_listen!r} must be host:port, such as 10.0.0.1:7443")
    return host or HOST


def _nats_config(fleet: Fleet) -> Path:
    state = fleet.state
    listen = f"{fleet.nats_host}:{state.ports['nats']}"
    identity = tls.identity(state.path) if fleet.join_listen else None
    return credentials.write_nats_config(state.path, listen, state.path / "nats" / "jetstream", identity)
