"""Nothing of a run is left: after its end, after the parent is killed, after the zygote is."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from banyan.programs.run import Limits
from services.verifier.jail.inside import cgroups
from services.verifier.jail.select import BACKENDS

REPOSITORY = Path(__file__).parents[3]
# A parent that runs a program with children for ever, and says where.
PARENT = """
import asyncio, sys
from services.verifier.jail.pool import ZygotePool
from banyan.programs.run import Limits, Run

async def main():
    jail = ZygotePool(sys.argv[1], width=1)
    await jail.check()
    zygote = jail._idle[0]
    print(zygote._process.pid, zygote._folder, flush=True)
    program = "import os, time\\nos.fork(), os.fork()\\ntime.sleep(600)"
    await jail.run(Run(program, limits=Limits(wall_s=600, processes=4)))

asyncio.run(main())
"""


def below(process: int) -> list[int]:
    """Return the processes below one, and itself, that have not ended."""
    found = [process]
    for one in found:
        try:
            children = Path(f"/proc/{one}/task/{one}/children").read_text()
        except OSError:
            continue
        found += [int(child) for child in children.split()]
    return found


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("victim", ["parent", "guard", "zygote"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_all_ends_with_whichever_of_ours_is_killed(
    backend: str, victim: str, eventually: Any, tmp_path: Path
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, backend],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    try:
        pid, folder = parent.stdout.readline().split()
        guard = int(pid)
        await eventually(lambda: len(below(guard)) >= 6, 10.0, "the program's children")
        processes = below(guard)
        victims = {"parent": parent.pid, "guard": guard, "zygote": processes[1]}
        os.kill(victims[victim], signal.SIGKILL)
        await eventually(
            lambda: not any(alive(process) for process in processes), 2.0, "the end of all"
        )
        if victim != "guard":
            await eventually(lambda: not Path(folder).exists(), 2.0, "the end of its folder")
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def v2(root: Path, controllers: str = "cpu io memory pids") -> tuple[Path, Path]:
    """Make a tree of control groups of version 2, and the file that names the own group."""
    own = root / "cgroup"
    own.write_text("0::/pod\n")
    pod = root / "fs" / "pod"
    pod.mkdir(parents=True)
    for folder in (root / "fs", pod):
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text("cpu")
    return root / "fs", own


def test_control_groups_of_version_2_bound_the_sum(tmp_path: Path) -> None:
    groups = cgroups.make(*v2(tmp_path))
    groups.limit(Limits(memory_mb=100, disk_mb=6, processes=3))
    (folder,) = set(groups.folders.values())
    assert folder.parent == tmp_path / "fs" / "pod" and groups.rules == "cgroup v2"
    assert (folder / "memory.max").read_text() == str((100 + 6 + 24) << 20)
    assert (folder / "pids.max").read_text() == "20"
    assert (folder / "cpu.max").read_text() == "100000 100000"
    assert (folder / "cpu.weight.nice").read_text() == "5"
    (folder / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    assert groups.memory_kills() == 3
    groups.enter()
    assert (folder / "cgroup.procs").read_text() == "0"


def test_control_groups_without_a_controller_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="lack memory, pids"):
        cgroups.make(*v2(tmp_path, "cpu io"))


def test_groups_of_zygotes_that_ended_are_removed(tmp_path: Path) -> None:
    root, own = v2(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (root / "pod" / f"banyan-jail-{ended.pid}-00").mkdir()
    (root / "pod" / f"banyan-jail-{os.getpid()}-00").mkdir()
    cgroups.make(root, own)
    names = {path.name for path in (root / "pod").glob("banyan-jail-*")}
    assert f"banyan-jail-{ended.pid}-00" not in names
    assert f"banyan-jail-{os.getpid()}-00" in names and len(names) == 2
