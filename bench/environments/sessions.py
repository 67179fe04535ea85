"""Memory of open sessions: 64 branches behind one session of 100 variables, each with its state."""

import os
import tempfile
from pathlib import Path

from banyan.environments import receipts
from banyan.programs.run import Limits
from banyan.programs.session import Task
from services.verifier.environments.states import States
from services.verifier.jail.chosen_sessions import ChosenSessions

BRANCHES, VARIABLES = 64, 100


async def open_sessions() -> tuple[float, float]:
    """Return MB of this process and its workers, before and with open sessions."""
    with tempfile.TemporaryDirectory() as folder:
        sessions = ChosenSessions(Path(folder), receipts.key_of("bench"))
        before, states = _pss_mb(), States()
        code = "\n".join(f"v{i} = [{i}, '{i}' * 8]" for i in range(VARIABLES))
        limits = Limits(wall_s=20.0, cpu_s=2.0, memory_mb=32)
        try:
            root = await sessions.do(Task(code, None, limits, 7))
            for number in range(BRANCHES):
                branch = await sessions.do(Task(f"v0 = {number}", root.state, limits, 7))
                assert branch.state is not None
                states.put(bytes([number]), branch.state)
            return before, _pss_mb()
        finally:
            await sessions.close()


def _pss_mb() -> float:
    """Return the proportional memory of this process and all below it."""
    return sum(map(_pss_kb, _below(os.getpid()))) / 1024


def _pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _below(pid: int) -> list[int]:
    children = [
        int(child)
        for tasks in Path(f"/proc/{pid}/task").glob("*/children")
        for child in tasks.read_text().split()
    ]
    return [pid, *(one for child in children for one in _below(child))]
