"""The state folder of the embedded mode: its lock, its ports, and the places of its files."""

import fcntl
import json
import os
import shutil
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from banyan.errors import InvalidInput, Refused
from banyan.runtime import secret, state_folder
from banyan.runtime.ports import free_port
from banyan.runtime.state_folder import HOST
from banyan.text.printable import textual
from services.chassis.process import private_files

PORTS = ("nats", "treestore", "gateway", "verifier", "page")
_OURS = {
    state_folder.LOCK,
    state_folder.PORTS_FILE,
    state_folder.STORE_FILE,
    "logs",
    "observe",  # of banyan observe
    secret.FILE,
    secret.METRICS_FILE,
    private_files.JAIL_PROOFS,
    "python",  # rows and code that banyan.train was given
}
_ASKED_S = 0.3  # for commands that only ask whether a system runs
LEAST_FREE = 64 << 20  # bytes for the log and an empty store


@dataclass
class StateFolder:
    """The data of a machine's runs. A single supervisor at a time holds its lock."""

    path: Path
    ports: dict[str, int] = field(default_factory=dict)
    _lock: IO[str] | None = None

    @classmethod
    def open(cls, path: Path) -> "StateFolder":
        """Open the folder, made if it is missing.

        Raise InvalidInput if it cannot be used or its disk is full.
        """
        _check_link(path)
        _check_own(path)
        if not textual(os.path.realpath(path)):
            raise InvalidInput(
                f"cannot use {path} as state folder: its name is no UTF-8 text;"
                " name another with --state"
            )
        try:
            for part in (path, path / "logs", path / "runs", path / "metrics"):
                private_files.folder(part)
            secret.make_metrics_key(path)
        except OSError as error:
            raise InvalidInput(
                f"cannot use {path} as state folder: {error.strerror}; name another with --state"
            ) from None
        free = shutil.disk_usage(path).free
        if free < LEAST_FREE:
            raise InvalidInput(
                f"{path} has {free >> 20} MiB free, and a run needs {LEAST_FREE >> 20} at the very"
                " least; free some, or name another folder with --state"
            )
        return cls(path.resolve())

    @property
    def secret(self) -> str:
        """Secret of the ports of this folder's services; empty before the first start."""
        return secret.read(self.path / secret.FILE)

    def lock(self) -> None:
        """Lock the folder for this process. Raise Refused with the holder's process id."""
        # Held for the life of the process.
        handle = open(self.path / state_folder.LOCK, "a+")  # noqa: SIM115
        if not _taken(handle):
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            handle.close()
            raise Refused(
                f"{self.path} is in use by process {holder};"
                " stop it, or use --state with another folder",
                "LOCKED",
            )
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        self._lock = handle

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def locked(self) -> bool:
        """Return True if a supervisor runs on this folder."""
        return state_folder.locked(self.path)

    def choose_ports(self, join_host: str = "") -> None:
        """Choose the ports once and keep them, except for ports that are occupied meanwhile.

        With `join_host`, the address at which nodes join, NATS listens there too, and a port for
        joining is chosen. Raise InvalidInput if that is no address of this host.
        """
        kept = self.read_ports()
        hosts = dict.fromkeys(PORTS, HOST)
        if join_host:
            hosts |= {"nats": join_host, "join": join_host}
        for name, host in hosts.items():
            port = kept.get(name, 0)
            try:
                if not port or not can_listen(host, port):
                    # The chosen ports are free too: their processes do not listen yet.
                    port = free_port(host, {*kept.values(), *self.ports.values()})
                self.ports[name] = port
            except OSError as error:
                raise InvalidInput(
                    f"cannot listen at {host}: {error.strerror}; name an address of this host"
                ) from None
        self._keep_ports(kept | self.ports)

    def _keep_ports(self, ports: dict[str, int]) -> None:
        partial = self.path / f"{state_folder.PORTS_FILE}.partial"
        partial.write_text(json.dumps(ports))
        partial.rename(self.path / state_folder.PORTS_FILE)

    def read_ports(self) -> dict[str, int]:
        """Return the ports that were chosen last; empty before the first start."""
        return state_folder.read_ports(self.path)

    def address(self, service: str) -> str:
        """Return host:port of a service of all runs. Raise InvalidInput before the first start."""
        port = self.ports.get(service)
        return f"{HOST}:{port}" if port else state_folder.address(self.path, service)

    def threads(self, name: str) -> Path:
        """Return the file with the number of threads that a process may use now (ADR 055)."""
        return self.path / "threads" / name

    def metrics(self, name: str) -> Path:
        """Return the file in which a process says where its metrics are."""
        return self.path / "metrics" / f"{name}.json"

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.path / "logs" / f"{name}.log"


def _taken(handle: IO[str]) -> bool:
    """Lock a file if no system has it; commands that ask whether one has hold it for a moment."""
    end = time.monotonic() + _ASKED_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
        time.sleep(0.01)


def _check_link(path: Path) -> None:
    """Raise InvalidInput for a link that leads to nothing, or back to itself."""
    if path.is_symlink() and not path.exists():
        raise InvalidInput(
            f"cannot use {path} as state folder: it is a link to {os.readlink(path)}, which does"
            " not exist or leads back to it; make that folder, or name another with --state"
        )


def _check_own(path: Path) -> None:
    """Raise InvalidInput for a folder that holds other things.

    A state folder is closed to all other users.
    """
    if not path.is_dir() or not os.access(path, os.R_OK):
        return
    names = {entry.name for entry in path.iterdir()} - {"lost+found"}
    if names and not names & _OURS:
        raise InvalidInput(
            f"{path} holds other things, such as {min(names)}, and a state folder is closed to all"
            " other users; name a new or an empty folder with --state"
        )


def can_listen(host: str, port: int) -> bool:
    """Return True if a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return True
        except OSError:
            return False
