"""Access to the treestore of a state folder: a running one, or one for a command alone."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import grpc

from banyan.cli.invocation import proposed
from banyan.client import Client
from banyan.errors import DeadlineMissed, InvalidInput
from banyan.runtime import secret
from banyan.runtime.launch import OURS

if TYPE_CHECKING:
    from services.supervisor.state import StateFolder

START_S = 30.0


@contextlib.contextmanager
def reading(state: Path) -> Iterator[Client]:
    """Yield a client for queries; works when nothing runs."""
    folder = checked(state)
    if folder.locked():
        with _connected(folder) as client:
            yield client
        return
    with read_only(state) as (address, known), Client(address, secret=known) as client:
        yield client


@contextlib.contextmanager
def storing(state: Path) -> Iterator[Client]:
    """Yield a client that may store too. Where nothing runs, a store alone is started for it, which
    no other process may use meanwhile.
    """
    folder = checked(state)
    if folder.locked():
        with _connected(folder) as client:
            yield client
        return
    folder = type(folder).open(state)
    folder.lock()
    try:
        folder.choose_ports()
        address = folder.address("treestore")
        started = _started(state, address, folder.path / secret.FILE, "BANYAN_OFFLINE")
        with started, Client(address, secret=folder.secret) as client:
            yield client
    finally:
        folder.unlock()


def checked(state: Path) -> "StateFolder":
    """Return a state folder. Raises InvalidInput if it holds no store."""
    from services.supervisor.state import StateFolder

    if not (state / "store.sqlite").exists() and not os.environ.get("BANYAN_DATABASE"):
        raise InvalidInput(
            f"{state} holds no store; run banyan train first, or name the folder with --state"
        )
    return StateFolder(state.resolve())


def _connected(folder: "StateFolder") -> Client:
    return Client(folder.address("treestore"), folder.address("gateway"), secret=folder.secret)


def running(state: Path) -> bool:
    """Return whether a system runs on the folder."""
    from services.supervisor.state import StateFolder

    return StateFolder(state.resolve()).locked()


@contextlib.contextmanager
def commanding(state: Path) -> Iterator[Client]:
    """Yield a client for commands; needs a running system."""
    from services.supervisor.state import StateFolder

    folder = StateFolder(state.resolve())
    if not folder.locked():
        raise InvalidInput(
            f"nothing runs on {state}, and this command needs a running system: start a run with "
            f"{proposed('train RECIPE', state)}, or go on with one that is not over: "
            f"{proposed('train --resume', state)}"
        )
    with _connected(folder) as client:
        yield client


@contextlib.contextmanager
def read_only(state: Path) -> Iterator[tuple[str, str]]:
    """Start a store for this command alone, and yield its address and secret.

    The state folder may be one that cannot be written.
    """
    from services.chassis.process.nats_server import free_port

    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as own:
        known = secret.make(Path(own) / secret.FILE)
        with _started(state, address, Path(own) / secret.FILE, "BANYAN_READ_ONLY"):
            yield address, known


@contextlib.contextmanager
def _started(state: Path, address: str, secret_file: Path, mode: str) -> Iterator[None]:
    """Start a store without a bus in one of its modes; stop it in the end."""
    env = {
        **os.environ,
        "BANYAN_STATE": str(state.resolve()),
        mode: "1",
        "BANYAN_LISTEN": address,
        "BANYAN_SECRET_FILE": str(secret_file),
    }
    env |= {"BANYAN_LOG_LEVEL": "warning", "BANYAN_PARENT": str(os.getpid())}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*OURS, "services.treestore"], env=env, stdout=log, stderr=log)
        try:
            _await(address, process, log)
            yield
        finally:
            process.terminate()
            process.wait(10)


def _await(address: str, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
    end = time.monotonic() + START_S
    with grpc.insecure_channel(address) as channel:
        ready = grpc.channel_ready_future(channel)
        while time.monotonic() < end:
            if process.poll() is not None:
                log.seek(0)
                raise InvalidInput(
                    log.read().decode(errors="replace").strip()
                    or f"the store ended with {process.returncode}"
                )
            with contextlib.suppress(grpc.FutureTimeoutError):
                ready.result(timeout=0.1)
                return
    raise DeadlineMissed(f"the store did not start within {START_S:.0f} s")
