"""Reaches the treestore of a state folder: the running one, or a read-only one that is started for the command."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import grpc

from banyan.cli.invocation import proposed
from banyan.client import Client
from banyan.errors import DeadlineMissed, InvalidInput
from banyan.runtime import secret
from banyan.runtime.launch import OURS

START_S = 30.0


@contextlib.contextmanager
def reading(state: Path) -> Iterator[Client]:
    """A client for queries; works when nothing runs."""
    from services.supervisor.state import StateFolder

    if not (state / "store.sqlite").exists() and not os.environ.get("BANYAN_DATABASE"):
        raise InvalidInput(
            f"{state} holds no store; run banyan train first, or name the folder with --state"
        )
    folder = StateFolder(state.resolve())
    if folder.locked():
        with Client(
            folder.address("treestore"), folder.address("gateway"), secret=folder.secret
        ) as client:
            yield client
        return
    with _read_only(state) as (address, known), Client(address, secret=known) as client:
        yield client


def running(state: Path) -> bool:
    """Whether a system runs on the folder."""
    from services.supervisor.state import StateFolder

    return StateFolder(state.resolve()).locked()


@contextlib.contextmanager
def commanding(state: Path) -> Iterator[Client]:
    """A client for commands; needs a running system."""
    from services.supervisor.state import StateFolder

    folder = StateFolder(state.resolve())
    if not folder.locked():
        raise InvalidInput(
            f"nothing runs on {state}, and this command needs a running system: start a run with"
            f" {proposed('train RECIPE', state)}, or go on with one that is not over: {proposed('train --resume', state)}"
        )
    with Client(
        folder.address("treestore"), folder.address("gateway"), secret=folder.secret
    ) as client:
        yield client


@contextlib.contextmanager
def _read_only(state: Path) -> Iterator[tuple[str, str]]:
    """Address and secret of a store that is there for this command alone; the folder may be one that cannot be written."""
    from services.chassis.process.nats_server import free_port

    address = f"127.0.0.1:{free_port()}"
    env = {
        **os.environ,
        "BANYAN_STATE": str(state.resolve()),
        "BANYAN_READ_ONLY": "1",
        "BANYAN_LISTEN": address,
    }
    env |= {"BANYAN_LOG_LEVEL": "warning", "BANYAN_PARENT": str(os.getpid())}
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as own:
        known = secret.make(Path(own) / secret.FILE)
        env["BANYAN_SECRET_FILE"] = str(Path(own) / secret.FILE)
        process = subprocess.Popen([*OURS, "services.treestore"], env=env, stdout=log, stderr=log)
        try:
            _await(address, process, log)
            yield address, known
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
    raise DeadlineMissed(f"the read-only store did not start within {START_S:.0f} s")
