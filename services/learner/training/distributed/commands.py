"""Commands of rank 0 to the other ranks: all execute the same one, and meet in its collectives.

The others wait for a command as long as rank 0 lives: sampling takes minutes, and is no collective.
"""

from enum import StrEnum
from typing import Any

import torch.distributed as dist

from services.learner.training.distributed.rank_group import RankGroup


class Command(StrEnum):
    """The operations in which all ranks take part."""

    LOAD = "load"
    STEP = "step"
    PUBLISH = "publish"
    CANARY = "canary"
    DRIFT = "drift"
    KEEP = "keep"
    STOP = "stop"


class CommandChannel:
    """One sequence of commands, sent by rank 0 and received by the others."""

    def __init__(self, rank_group: RankGroup) -> None:
        self.rank_group, self._next = rank_group, 0

    def send(self, command: Command) -> None:
        """Send the next command (rank 0)."""
        self.rank_group.put(f"command/{self._next}", command)
        if self._next >= 2:  # all have read it, for they met in it
            self.rank_group.remove(f"command/{self._next - 2}")
        self._next += 1

    def receive(self) -> Command:
        """Wait for the next command (other ranks). Raises RankLost."""
        command = Command(self.rank_group.wait_for(f"command/{self._next}", 0))
        self._next += 1
        return command

    def meet(self) -> None:
        """Wait until all ranks have executed this command (every rank)."""
        self.rank_group.meet(f"done/{self._next}")

    def scatter(self, parts: list[Any]) -> Any:
        """Send each rank its part, in order of rank, and return rank 0's (rank 0)."""
        with self.rank_group.guarded("handing out"):
            received: list[Any] = [None]
            dist.scatter_object_list(received, parts, src=0)
            return received[0]

    def receive_part(self) -> Any:
        """Return this rank's part of what rank 0 scatters (other ranks)."""
        with self.rank_group.guarded("being handed its part"):
            received: list[Any] = [None]
            dist.scatter_object_list(received, None, src=0)
            return received[0]
