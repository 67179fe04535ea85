"""The state folder of the embedded mode: its lock, its ports, and where everything lies."""

import fcntl
import json
import os
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from banyan.errors import InvalidInput, Refused
from banyan.runtime import secret
from banyan.text.printable import textual
from services.chassis.process import private_files
from services.chassis.process.nats_server import free_port

PORTS = ("nats", "treestore", "gateway", "verifier")
HOST = "127.0.0.1"
LEAST_FREE = 64 << 20  # bytes: with less not even the log and an empty store find room


@dataclass
class StateFolder:
    """Everything that a machine keeps of its runs. One supervisor at a time holds its lock."""

    path: Path
    ports: dict[str, int] = field(default_factory=dict)
    _lock: IO[str] | None = None

    @classmethod
    def open(cls, path: Path) -> "StateFolder":
        """Makes the folder if need be. Raises InvalidInput where that cannot be, or where nothing more fits."""
        _check_own(path)
        if not textual(str(path.resolve())):
            raise InvalidInput(
                f"cannot use {path} as state folder: its name is no UTF-8 text; name another with --state"
            )
        try:
            for part in (path, path / "logs", path / "runs"):
                private_files.folder(part)
            secret.make(path / secret.FILE)
        except OSError as error:
            raise InvalidInput(
                f"cannot use {path} as state folder: {error.strerror}; name another with --state"
            ) from None
        free = shutil.disk_usage(path).free
        if free < LEAST_FREE:
            raise InvalidInput(
                f"{path} has {free >> 20} MiB free, and a run needs {LEAST_FREE >> 20} at the very least;"
                " free some, or name another folder with --state"
            )
        return cls(path.resolve())

    @property
    def secret(self) -> str:
        """What the ports of this folder's services ask for; empty before the first start."""
        return secret.read(self.path / secret.FILE)

    def lock(self) -> None:
        """Takes the folder for this process. Raises Refused with the holder's pid."""
        handle = open(self.path / "lock", "a+")  # noqa: SIM115  held for the life of the process
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            handle.close()
            raise Refused(
                f"{self.path} is in use by process {holder}; stop it, or use --state with another folder",
                "LOCKED",
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        self._lock = handle

    def unlock(self) -> None:
        """Gives the folder back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def locked(self) -> bool:
        """Whether a supervisor runs on this folder."""
        try:
            with open(self.path / "lock") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False

    def choose_ports(self, join_host: str = "") -> None:
        """Ports are chosen once and kept; one that somebody else took in the meantime is chosen anew.

        With `join_host`, the address at which nodes join, NATS listens there too, and a port for joining is chosen.
        Raises InvalidInput if that is no address of this host.
        """
        kept = self.read_ports()
        hosts = dict.fromkeys(PORTS, HOST) | (
            {"nats": join_host, "join": join_host} if join_host else {}
        )
        for name, host in hosts.items():
            port = kept.get(name, 0)
            try:
                taken = {*kept.values(), *self.ports.values()}  # nobody listens there yet
                self.ports[name] = (
                    port if port and can_listen(host, port) else free_port(host, taken)
                )
            except OSError as error:
                raise InvalidInput(
                    f"cannot listen at {host}: {error.strerror}; name an address of this host"
                ) from None
        self._keep_ports(kept | self.ports)

    def _keep_ports(self, ports: dict[str, int]) -> None:
        partial = self.path / "ports.json.partial"
        partial.write_text(json.dumps(ports))
        partial.rename(self.path / "ports.json")

    def read_ports(self) -> dict[str, int]:
        """The ports that were chosen last; empty before the first start."""
        try:
            return {
                str(k): int(v)
                for k, v in json.loads((self.path / "ports.json").read_text()).items()
            }
        except (OSError, ValueError):
            return {}

    def address(self, service: str) -> str:
        """host:port of a service of all runs."""
        port = self.ports.get(service) or self.read_ports().get(service)
        if not port:
            raise InvalidInput(
                f"{service} was never started on {self.path}; run banyan train first"
            )
        return f"{HOST}:{port}"

    def threads(self, name: str) -> Path:
        """File that tells a process of a run how many threads it may use now."""
        return self.path / "threads" / name

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self.path / "logs" / f"{name}.log"


def _check_own(path: Path) -> None:
    """A state folder is closed to everybody else, so it must not be one that holds other things."""
    there = (
        {p.name for p in path.iterdir()} - {"lost+found"}
        if path.is_dir() and os.access(path, os.R_OK)
        else set()
    )
    if there and not there & {"lock", "ports.json", "store.sqlite", "logs", secret.FILE}:
        raise InvalidInput(
            f"{path} holds other things, such as {min(there)}, and a state folder is closed to all other users;"
            " name a new or an empty folder with --state"
        )


def can_listen(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return True
        except OSError:
            return False
