"""A real nats-server that serves tests in turn, each in its own account, until one kills it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from banyan.runtime import ports
from services.chassis.process import nats_server as server_module

ACCOUNTS = 64  # of one server; the test after the last of them gets a new server
_MAX_FILE_STORE = (
    f"{ACCOUNTS * 16}GB"  # it takes no room; streams of all accounts are counted against it
)


class NatsServer:
    """A nats-server with an account for each of the next tests.

    All name their streams alike, and no account sees another's. A test may kill it and start it
    again on the same port and files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{ports.free_port()}"
        self.config = server_module.write_config(folder, self.address)
        told = self.config.read_text().replace(server_module.MAX_FILE_STORE, _MAX_FILE_STORE)
        self.config.write_text(
            told + "".join(["accounts {\n", *map(_account, range(ACCOUNTS)), "}\n"])
        )
        self._accounts = iter(range(ACCOUNTS))
        self._touched = False
        self.url = self._next()
        self._start()

    def _start(self) -> None:
        log = self.folder / "nats.log"
        self.process = server_module.start(self.config, log)
        server_module.await_listening(self.address, self.process, log)

    def next_account(self) -> bool:
        """Go on to an account that no test has used.

        Return False if there is none, or a test killed this server.
        """
        url = self._next()
        if not url or self._touched or self.process.poll() is not None:
            return False
        self.url = url
        return True

    def _next(self) -> str:
        n = next(self._accounts, None)
        return "" if n is None else f"nats://test{n}:test{n}@{self.address}"

    def restart(self) -> None:
        """Starts the server that `kill9` ended."""
        self._touched = True
        self._start()

    def kill9(self) -> None:
        self._touched = True
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)


def _account(n: int) -> str:
    return f"  TEST{n} {{ jetstream: enabled, users: [{{ user: test{n}, password: test{n} }}] }}\n"


class Brokers:
    """The server of a session of tests.

    It is replaced when its accounts are used up or a test killed it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: list[NatsServer] = []

    def lend(self) -> NatsServer:
        """A running server, in an account without streams."""
        if not self._servers or not self._servers[-1].next_account():
            self.close()
            self._servers.append(NatsServer(self._folder / str(len(self._servers))))
        return self._servers[-1]

    def close(self) -> None:
        if self._servers:
            self._servers[-1].stop()


def running(folder: Path) -> Iterator[Brokers]:
    brokers = Brokers(folder)
    try:
        yield brokers
    finally:
        brokers.close()
