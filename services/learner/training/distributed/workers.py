"""The other ranks of a learner that nobody started with torchrun: children of rank 0, on this machine.

They get the variables that torchrun would give them. The store that they meet at listens on the loopback address alone.
"""

import contextlib
import os
import signal
import socket
import subprocess
from dataclasses import dataclass, field

from torch._C._distributed_c10d import TCPStore

from banyan.runtime.launch import OURS
from services.chassis.process.parent_death import PARENT_VARIABLE
from services.learner.training.distributed.rank_loss import RankLost

HOST = "127.0.0.1"
_END_S = 15.0


@dataclass
class Workers:
    """Ranks 1 to size − 1, started."""

    size: int
    threads: int
    ranks: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        listening = socket.create_server((HOST, 0))
        port = listening.getsockname()[1]
        handle = listening.detach()  # the store's from here on
        self.store = TCPStore(
            HOST, port, self.size, is_master=True, wait_for_workers=False, master_listen_fd=handle
        )
        for rank in range(1, self.size):
            self.ranks[rank] = self._started(rank, port)

    def _started(self, rank: int, port: int) -> "subprocess.Popen[bytes]":
        said = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self.size,
            "MASTER_ADDR": HOST,
            "MASTER_PORT": port,
        }
        said |= {
            "BANYAN_THREADS": self.threads,
            "OMP_NUM_THREADS": self.threads,
            PARENT_VARIABLE: os.getpid(),
        }
        said |= {
            "OMP_PROC_BIND": "false"
        }  # bound, the first thread of every rank would keep to the first core
        environ = {**os.environ, **{name: str(value) for name, value in said.items()}}
        command = [*OURS, "services.learner"]
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)

    def look(self) -> None:
        """Raises RankLost for a rank that has ended."""
        for rank, process in self.ranks.items():
            status = process.poll()
            if status is not None:
                raise RankLost(f"rank {rank} of this learner ended {_said(status)}")

    def end(self) -> None:
        """Waits for those that go, and kills the others."""
        for process in self.ranks.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
            process.wait()


def _said(status: int) -> str:
    return (
        f"by {signal.Signals(-status).name}"
        if status < 0
        else f"with status {status}; the log has its own cause"
    )
