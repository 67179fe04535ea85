"""The torch thread of rank 0: every order goes to the other ranks first, and then all of them do the same."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.recipe import Recipe
from services.learner.checkpoints.checkpoint import Mark, Snapshot
from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import TreePart
from services.learner.training.distributed import cost, split
from services.learner.training.distributed.workers import Workers
from services.learner.training.distributed.rank_loss import RankLost
from services.learner.training.distributed.commands import Order, Orders
from services.learner.training.distributed.heartbeat import BEAT_S
from services.learner.training.distributed.heartbeat_watch import Watch
from services.learner.training.trainer_thread import PASS_S, Timed, TorchThread

if TYPE_CHECKING:
    import torch

    from services.learner.training.trainer import Trainer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opening:
    """What the other ranks load: the same folder, so it must be where they can read it."""

    recipe_json: str
    folder: Path
    resumed: bool
    base: Path | None


class RankThread(TorchThread):
    """Rank 0's. `crew`: the other ranks where this process started them; torchrun did otherwise."""

    def __init__(
        self, recipe: Recipe, threads: int | None, orders: Orders, crew: Workers | None = None
    ) -> None:
        super().__init__(recipe, threads)
        self._world, self._orders, self._crew = orders.world, orders, crew
        self._local = orders.world.local

    def _made(self, *given: Any) -> "Trainer":
        from services.learner.training.distributed.trainer import RankTrainer

        return RankTrainer(self._world, *given)

    def _load(self, folder: Path, resumed: bool, base: Path | None) -> None:
        opening = Opening(self._recipe.model_dump_json(), folder, resumed, base)
        self._orders.give(Order.LOAD)
        self._orders.tell([opening] * self._world.size)
        self._world.pulse.at("loading the model")
        super()._load(folder, resumed, base)
        self._costs = cost.costs_of(self.trainer.model.config)
        self._orders.meet()
        log.info("%d ranks train together", self._world.size)

    def pack(self, pieces: Iterable[TreePart], budget: int) -> list[PackedSequence]:
        """Rows of all ranks, one after the other."""
        return split.pack(pieces, budget, self._world.size, self._costs)

    async def step(
        self, rows: Sequence[PackedSequence], step: int, sizes: Sequence[int] = ()
    ) -> Timed:
        """The optimizer steps of a batch; sizes: rows of each minibatch, of all ranks."""
        size = self._world.size
        share = [
            (split.of_rank(rows, rank, size), step, tuple(n // size for n in sizes))
            for rank in range(size)
        ]

        def train() -> Timed:
            begun = time.monotonic()
            self._orders.give(Order.STEP)
            report = self.trainer.step(*self._orders.tell(list(share)))
            return Timed(report, time.monotonic() - begun)

        return await self.run(train, "a step", PASS_S)

    async def drift(self, rows: Sequence[PackedSequence]) -> dict[str, float]:
        """Measure the distance from the start; every rank computes the same rows."""

        def measure() -> dict[str, float]:
            self._orders.give(Order.DRIFT)
            return self.trainer.drift(self._orders.tell([rows] * self._world.size))

        return await self.run(measure)

    def _published(self) -> "tuple[Mapping[str, torch.Tensor], Mapping[str, Any] | None]":
        self._orders.give(Order.PUBLISH)
        with self._world.named("gathering weights"):
            return super()._published()

    def _canary(self) -> dict[str, Any] | None:
        from services.learner.training.distributed.trainer import RankTrainer

        if self._recipe.resources.engine != "vllm":
            return None
        self._orders.give(Order.CANARY)
        assert isinstance(self.trainer, RankTrainer)
        return self.trainer.canary(self.dtype_name)

    async def snapshot(self, mark: Mark, apart: bool) -> Snapshot:
        """The exact state, gathered: copied in any case, so that nobody changes it any more."""
        from services.learner.training.distributed.trainer import RankTrainer

        def take() -> Snapshot:
            self._orders.give(Order.KEEP)
            assert isinstance(self.trainer, RankTrainer)
            return Snapshot(mark, self.trainer.exact(), self.trainer.moments(), self._adapter())

        return await self.run(take)

    def trained_bytes(self) -> int:
        """Bytes of what a checkpoint holds, of all ranks."""
        return super().trained_bytes() * self._world.size

    async def watch(self) -> None:
        """Until cancelled; raises RankLost once another rank is lost, also while nothing is asked of it."""
        watch = Watch(self._world.pulse, range(1, self._world.size), self._world.timeout_s)
        while True:
            if self._crew is not None:
                self._crew.look()
            await asyncio.to_thread(watch.look)
            await asyncio.sleep(BEAT_S)

    def done(self) -> None:
        """Sends the other ranks home after what they are doing."""
        self._pool.submit(self._part)
        super().done()
        if self._crew is not None:
            self._crew.end()

    def _part(self) -> None:
        with contextlib.suppress(RankLost):
            self._orders.give(Order.STOP)
        self._world.close()
