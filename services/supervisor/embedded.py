"""The embedded mode: the whole system on one state folder."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from banyan.errors import InvalidInput
from banyan.runtime.state_folder import HOST
from services.gateway.join import nats_accounts, tls
from services.supervisor import logs
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.fleet import ProcessCommands
from services.supervisor.state import StateFolder, can_listen
from services.supervisor.supervisor import Supervisor
from services.supervisor.watch import Patience


@contextlib.asynccontextmanager
async def embedded(
    path: Path,
    *,
    join_listen: str = "",
    extra: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    backoff: Backoff | None = None,
) -> AsyncIterator[Supervisor]:
    """Run a system on `path` until the block is left.

    With `join_listen`, host:port, gateway and NATS are open to joining nodes, with TLS. Raise
    Refused if another supervisor holds the folder, InvalidInput for an impossible address.
    """
    host, port = address(join_listen)
    state = StateFolder.open(path)
    state.lock()
    try:
        state.choose_ports(host)
        fleet = ProcessCommands(
            state,
            join_listen=_join_address(state, host, port),
            nats_host=host or HOST,
            nats_tls=(str(tls.certificate(state.path).resolve()), tls.NAME) if host else ("", ""),
            extra=extra,
            inherited=os.environ,
        )
        config = _nats_config(fleet)

        async def broker() -> Child:
            return fleet.nats(config)

        supervisor = Supervisor(fleet, broker, backoff, patience)
        try:
            async with logs.kept_small(state.path / "logs"):
                await supervisor.start()
                yield supervisor
        finally:
            await supervisor.stop()
    finally:
        state.unlock()


def address(join_listen: str) -> tuple[str, int]:
    """Return host and port of `--listen`; empty and 0 without it. Raise InvalidInput."""
    if not join_listen:
        return "", 0
    host, _, port = join_listen.rpartition(":")
    if not host or not port.isdigit() or ":" in host or int(port) > 65535:
        raise InvalidInput(f"--listen {join_listen!r} must be host:port, such as 10.0.0.1:7443")
    return host, int(port)


def _join_address(state: StateFolder, host: str, port: int) -> str:
    """Return the address at which nodes join.

    For port 0 it stays the same, so that nodes find the gateway again after a restart.
    """
    if port and not can_listen(host, port):
        raise InvalidInput(
            f"--listen {host}:{port}: the port is in use; name another, or 0 for any"
        )
    return f"{host}:{port or state.ports['join']}" if host else ""


def _nats_config(fleet: ProcessCommands) -> Path:
    state = fleet.state
    listen = f"{fleet.nats_host}:{state.ports['nats']}"
    identity = tls.identity(state.path) if fleet.join_listen else None
    return nats_accounts.write_nats_config(
        state.path, listen, state.path / "nats" / "jetstream", identity
    )
