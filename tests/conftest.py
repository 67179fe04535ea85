"""Fixtures that meet the real thing: a nats-server on a free port, and waiting for conditions with a deadline."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from banyan import torchenv

os.environ.update({**torchenv.SETTINGS, **os.environ})
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # its handlers crash a forked child; PostgreSQL as nobody needs one

from services.chassis import nats_server as server_module


class NatsServer:
    """A real nats-server that a test may kill and start again on the same port and files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{server_module.free_port()}"
        self.url = f"nats://{self.address}"
        self.config = server_module.write_config(folder, self.address)
        self.process: subprocess.Popen[bytes] | None = None
        self.restart()

    def restart(self) -> None:
        log = self.folder / "nats.log"
        self.process = server_module.start(self.config, log)
        server_module.await_listening(self.address, self.process, log)

    def kill9(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    yield server
    server.stop()


async def wait_until(condition: Callable[[], bool | Awaitable[bool]], deadline_s: float = 10.0, what: str = "") -> None:
    """Waits until the condition holds; fails with what it waited for."""
    end = time.monotonic() + deadline_s
    while True:
        result = condition()
        if await result if isinstance(result, Awaitable) else result:
            return
        if time.monotonic() > end:
            raise AssertionError(f"{what or condition} did not hold within {deadline_s} s")
        await asyncio.sleep(0.01)


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    return wait_until
