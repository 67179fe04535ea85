"""The other ranks of a learner that runs without torchrun: child processes of rank 0.

They get the environment variables that torchrun would set. Their rendezvous store listens on the
loopback address only.
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
    """Ranks 1 to size − 1, running.

    size: number of ranks, with rank 0
    threads: torch threads of each
    ranks: processes by rank
    """

    size: int
    threads: int
    ranks: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        listener = socket.create_server((HOST, 0))
        port = listener.getsockname()[1]
        self.store = TCPStore(
            HOST,
            port,
            self.size,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # the store owns the socket from here on
        )
        for rank in range(1, self.size):
            self.ranks[rank] = self._start(rank, port)

    def _start(self, rank: int, port: int) -> "subprocess.Popen[bytes]":
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self.size,
            "MASTER_ADDR": HOST,
            "MASTER_PORT": port,
            "BANYAN_THREADS": self.threads,
            "OMP_NUM_THREADS": self.threads,
            PARENT_VARIABLE: os.getpid(),
            # Bound, the first thread of every rank would keep to the first core.
            "OMP_PROC_BIND": "false",
        }
        environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        command = [*OURS, "services.learner"]
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)

    def check(self) -> None:
        """Raise RankLost if a rank has ended."""
        for rank, process in self.ranks.items():
            status = process.poll()
            if status is not None:
                raise RankLost(f"rank {rank} of this learner ended {_ending(status)}")

    def end(self) -> None:
        """Wait for the ranks to exit, and kill those that do not."""
        for process in self.ranks.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
            process.wait()


def _ending(status: int) -> str:
    if status < 0:
        return f"by {signal.Signals(-status).name}"
    return f"with status {status}; the log has its own cause"
