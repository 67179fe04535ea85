"""Traps of the battery: files, sockets and a process that a program must not reach."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from services.verifier.sandbox.confinement import folders

_LEFT = (".", "..", "/tmp", "/var/tmp", "/dev/shm", "/")
_MOST_OF_FOLDER = 70
_SECRET = b"secret of the battery"


class Traps:
    """Files, sockets and a process of this user, made for one pass of the battery.

    message: what the programs are told of them.
    """

    def __init__(self, limits: dict[str, int]) -> None:
        with contextlib.ExitStack() as undo:
            self._set(limits, undo)
            self._undo = undo.pop_all()

    def _set(self, limits: dict[str, int], undo: contextlib.ExitStack) -> None:
        folder, self._lock = folders.locked(folders.BATTERY, _short())
        self.folder = Path(folder)
        undo.callback(self._remove)
        # Open to all users, so that only the jail stands before them.
        self.folder.chmod(0o777)
        self._mark = f"left-{self.folder.name}"
        self._files = [self._file(name) for name in ("secret", "rows.jsonl", ".env")]
        self._sockets = {
            "tcp": _listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": _listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "abstract": _listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.folder.name}"),
            "named": _listen(socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "socket")),
        }
        for trap in self._sockets.values():
            undo.callback(trap.close)
        (self.folder / "socket").chmod(0o777)
        # It ends with this process, too, whose end of the pipe is then closed.
        self._victim = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _VICTIM], stdin=subprocess.PIPE
        )
        undo.callback(self._victim.communicate)
        undo.callback(self._victim.kill)
        self.message: dict[str, Any] = {
            "files": [*map(str, self._files), "/etc/passwd", "/etc/hostname", "/proc/1/environ"],
            "folders": [str(self.folder), "/home", os.getcwd()],
            "writable": [str(self.folder / "rows.jsonl"), "/etc/passwd"],
            "tcp": self._sockets["tcp"].getsockname()[1],
            "udp": self._sockets["udp"].getsockname()[1],
            "abstract": self.folder.name,
            "named": str(self.folder / "socket"),
            "processes": [self._victim.pid, os.getpid(), os.getppid()],
            "places": [os.path.join(folder, self._mark) for folder in _LEFT],
            "paths": [path for path in sys.path if path and not path.startswith(sys.base_prefix)],
            **limits,
        }

    def _file(self, name: str) -> Path:
        path = self.folder / name
        path.write_bytes(_SECRET)
        path.chmod(0o666)
        return path

    def sprung(self) -> list[str]:
        """Return the traps that were touched, whatever the programs said."""
        touched = [f"{path} was changed" for path in self._files if not _is_whole(path)]
        expected = {path.name for path in self._files} | {"socket", folders.MARK}
        touched += [f"{name} was made" for name in os.listdir(self.folder) if name not in expected]
        for name, trap in self._sockets.items():
            try:
                trap.recv(16) if name == "udp" else trap.accept()
            except BlockingIOError:
                continue
            touched.append(f"{name} was reached")
        if self._victim.poll() is not None:
            touched.append("the other process was ended")
        return touched

    def close(self) -> None:
        """Remove them."""
        self._undo.close()

    def _remove(self) -> None:
        folders.remove(str(self.folder))
        os.close(self._lock)
        for folder in _LEFT:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, self._mark))


def _short() -> str:
    """Return a folder for temporary ones in which the path of a socket fits its 107 bytes."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) < _MOST_OF_FOLDER else "/tmp"


_VICTIM = "import sys; sys.stdin.read()"


def _is_whole(path: Path) -> bool:
    try:
        status = path.stat()
        return path.read_bytes() == _SECRET and status.st_mode & 0o777 == 0o666
    except OSError:
        return False


def _listen(family: int, kind: int, address: Any) -> socket.socket:
    trap = socket.socket(family, kind)
    trap.bind(address)
    if kind == socket.SOCK_STREAM:
        trap.listen()
    trap.setblocking(False)
    return trap
