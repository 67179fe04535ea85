"""What rank 0 tells the others to do next. All of them then do the same, and meet in the collectives of it.

Others wait for an order as long as rank 0 lives: sampling takes minutes, and that is no collective.
"""

from enum import StrEnum
from typing import Any

import torch.distributed as dist

from services.learner.training.distributed.rank_group import RankGroup


class Order(StrEnum):
    """All that is done by all."""

    LOAD = "load"
    STEP = "step"
    PUBLISH = "publish"
    CANARY = "canary"
    DRIFT = "drift"
    KEEP = "keep"
    STOP = "stop"


class Orders:
    """Given by rank 0, taken by the others, in one sequence."""

    def __init__(self, world: RankGroup) -> None:
        self.world, self._next = world, 0

    def give(self, order: Order) -> None:
        """Rank 0: begins an order."""
        self.world.say(f"order/{self._next}", order)
        if self._next >= 2:  # all have read it, for they met in it
            self.world.forget(f"order/{self._next - 2}")
        self._next += 1

    def take(self) -> Order:
        """Others: waits for the next one. Raises RankLost."""
        order = Order(self.world.hear(f"order/{self._next}", 0))
        self._next += 1
        return order

    def meet(self) -> None:
        """All: waits until the others have done this order, however long they take."""
        self.world.meet(f"done/{self._next}")

    def tell(self, whats: list[Any]) -> Any:
        """Rank 0: gives each rank what is its own; returns rank 0's."""
        with self.world.named("handing out"):
            found: list[Any] = [None]
            dist.scatter_object_list(found, whats, src=0)
            return found[0]

    def told(self) -> Any:
        """Others: what rank 0 gives this rank."""
        with self.world.named("being handed its part"):
            found: list[Any] = [None]
            dist.scatter_object_list(found, None, src=0)
            return found[0]
