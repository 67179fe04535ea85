"""Control groups of a zygote's runs: memory, processes and processor time, each in sum.

Version 1 keeps a tree for each controller, version 2 one tree for all.
"""

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from banyan.programs.run import THREADS, Limits
from services.verifier.sandbox.confinement import priority

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NAME = "banyan-jail-"  # followed by the process that made the group
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
_INTERPRETER_MB = 24


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one zygote.

    rules: version and controllers, in words.
    folders: folder of each controller; in version 2 they are one.
    """

    rules: str
    folders: Mapping[str, Path]

    def limit(self, limits: Limits) -> None:
        """Set the limits of the next run. Raises OSError."""
        memory = (limits.memory_mb + limits.disk_mb + _INTERPRETER_MB) << 20
        most = 1 + limits.processes + THREADS
        if self._is_v2:
            folder = self.folders["memory"]
            _write(folder / "memory.max", str(memory))
            _write(folder / "pids.max", str(most))
            _write(folder / "cpu.max", f"{_PERIOD_US} {_PERIOD_US}")
            _write(folder / "cpu.weight.nice", str(priority.YIELDING_TOGETHER))
            return
        _write(self.folders["memory"] / "memory.limit_in_bytes", str(memory))
        _write(self.folders["pids"] / "pids.max", str(most))
        _write(self.folders["cpu"] / "cpu.cfs_period_us", str(_PERIOD_US))
        _write(self.folders["cpu"] / "cpu.cfs_quota_us", str(_PERIOD_US))
        _write(self.folders["cpu"] / "cpu.shares", str(priority.weight()))

    def enter(self) -> None:
        """Put this process into the groups. Raises OSError."""
        for folder in dict.fromkeys(self.folders.values()):
            _write(folder / "cgroup.procs", "0")

    def memory_kills(self) -> int:
        """Return how many processes have been killed for their memory so far."""
        name = "memory.events" if self._is_v2 else "memory.oom_control"
        for line in _read(self.folders["memory"] / name).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
        return 0

    def refused_processes(self) -> int:
        """Return how many processes have been refused so far."""
        for line in _read(self.folders["pids"] / "pids.events").splitlines():
            key, _, value = line.partition(" ")
            if key == "max":
                return int(value)
        return 0

    def remove(self) -> None:
        """Remove the groups, which hold no process any more."""
        for folder in dict.fromkeys(self.folders.values()):
            os.rmdir(folder)

    @property
    def _is_v2(self) -> bool:
        return len(set(self.folders.values())) == 1


def make(root: Path = _ROOT, own: Path = _OWN) -> Groups:
    """Make groups below those of this process. Raises OSError where that is not allowed."""
    name = f"{_NAME}{os.getpid()}-{secrets.token_hex(4)}"
    paths = _own_paths(own.read_text())
    if (root / "cgroup.controllers").exists():
        return _make_v2(root / paths.get("", "").lstrip("/"), name)
    folders: dict[str, Path] = {}
    for controller in _CONTROLLERS:
        parent = root / controller / paths.get(controller, "").lstrip("/")
        # In a container the path may be that of the host, below which nothing is mounted.
        parent = parent if parent.is_dir() else root / controller
        _remove_left(parent)
        folders[controller] = parent / name
        folders[controller].mkdir()
    return Groups("cgroup v1", folders)


def _make_v2(parent: Path, name: str) -> Groups:
    missing = set(_CONTROLLERS) - set(_read(parent / "cgroup.controllers").split())
    if missing:
        raise OSError(f"control groups at {parent} lack {', '.join(sorted(missing))}")
    enabled = set(_read(parent / "cgroup.subtree_control").split())
    for controller in sorted(set(_CONTROLLERS) - enabled):
        _write(parent / "cgroup.subtree_control", f"+{controller}")
    _remove_left(parent)
    folder = parent / name
    folder.mkdir()
    return Groups("cgroup v2", dict.fromkeys(_CONTROLLERS, folder))


def _remove_left(parent: Path) -> None:
    """Remove the groups of zygotes that were killed."""
    for folder in parent.glob(f"{_NAME}*"):
        maker = folder.name.removeprefix(_NAME).partition("-")[0]
        if maker.isdigit() and not Path(f"/proc/{maker}").exists():
            with contextlib.suppress(OSError):  # it holds processes, or another removed it
                folder.rmdir()


def _own_paths(text: str) -> dict[str, str]:
    """Return the path of this process's group for each controller; "" names version 2."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _read(path: Path) -> str:
    return path.read_text()


def _write(path: Path, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)
