"""The torch thread of rank 0: it sends each command to the other ranks and executes it too."""

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
from services.learner.data.prepare import Lesson
from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import TreePart
from services.learner.training.distributed import cost, split
from services.learner.training.distributed.commands import Command, CommandChannel
from services.learner.training.distributed.heartbeat import BEAT_S
from services.learner.training.distributed.heartbeat_watch import HeartbeatWatch
from services.learner.training.distributed.rank_loss import RankLost
from services.learner.training.distributed.workers import Workers
from services.learner.training.trainer_thread import PASS_S, Timed, TorchThread

if TYPE_CHECKING:
    import torch

    from services.learner.training.distributed.trainer import RankTrainer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The arguments of a load, for all ranks: each must reach the folders under the same path."""

    recipe_json: str
    folder: Path
    resumed: bool
    base: Path | None


class RankThread(TorchThread):
    """The torch thread of rank 0.

    workers: the other ranks where this process started them; None under torchrun
    """

    def __init__(
        self,
        recipe: Recipe,
        threads: int | None,
        commands: CommandChannel,
        workers: Workers | None = None,
    ) -> None:
        super().__init__(recipe, threads)
        self._commands, self._workers = commands, workers
        self._rank_group = commands.rank_group
        self._local = self._rank_group.local

    def _make_trainer(self, *arguments: Any) -> "RankTrainer":
        from services.learner.training.distributed.trainer import RankTrainer

        return RankTrainer(self._rank_group, *arguments)

    @property
    def _rank_trainer(self) -> "RankTrainer":
        from services.learner.training.distributed.trainer import RankTrainer

        assert isinstance(self.trainer, RankTrainer)
        return self.trainer

    def _load(self, folder: Path, resumed: bool, base: Path | None) -> None:
        opening = Opening(
            recipe_json=self._recipe.model_dump_json(), folder=folder, resumed=resumed, base=base
        )
        self._commands.send(Command.LOAD)
        self._commands.scatter([opening] * self._rank_group.size)
        self._rank_group.heartbeat.set_activity("loading the model")
        super()._load(folder, resumed, base)
        self._costs = cost.costs_of(self.trainer.model.config)
        self._commands.meet()
        log.info("%d ranks train together", self._rank_group.size)

    def pack(self, pieces: Iterable[TreePart], budget: int) -> list[PackedSequence]:
        """Pack pieces of trees into the sequences of all ranks (split.pack)."""
        return split.pack(pieces, budget, self._rank_group.size, self._costs)

    async def step(self, lesson: Lesson, step: int) -> Timed:
        """Take the optimizer steps of a batch; its minibatches hold sequences of all ranks."""
        ranks = self._rank_group.size
        own_sizes = tuple(size // ranks for size in lesson.sizes)
        parts = [
            (split.of_rank(lesson.sequences, rank, ranks), step, own_sizes, lesson.silent)
            for rank in range(ranks)
        ]

        def train() -> Timed:
            begun = time.monotonic()
            self._commands.send(Command.STEP)
            report = self.trainer.step(*self._commands.scatter(list(parts)))
            return Timed(report, time.monotonic() - begun)

        return await self.run(train, "a step", PASS_S)

    async def drift(self, sequences: Sequence[PackedSequence]) -> dict[str, float]:
        """Measure the distance from the start; every rank computes the same sequences."""

        def measure() -> dict[str, float]:
            self._commands.send(Command.DRIFT)
            received = self._commands.scatter([sequences] * self._rank_group.size)
            return self.trainer.drift(received)

        return await self.run(measure)

    def _published(self) -> "tuple[Mapping[str, torch.Tensor], Mapping[str, Any] | None]":
        self._commands.send(Command.PUBLISH)
        with self._rank_group.guarded("gathering weights"):
            return super()._published()

    def _canary(self) -> dict[str, Any] | None:
        if self._recipe.resources.engine != "vllm":
            return None
        self._commands.send(Command.CANARY)
        return self._rank_trainer.canary(self.dtype_name)

    async def snapshot(self, mark: Mark, copied: bool) -> Snapshot:
        """Return the exact state, gathered: gathering copies it in any case."""

        def take() -> Snapshot:
            self._commands.send(Command.KEEP)
            trainer = self._rank_trainer
            return Snapshot(
                mark=mark,
                weights=trainer.exact(),
                moments=trainer.moments(),
                adapter=self._adapter(),
            )

        return await self.run(take)

    def trained_bytes(self) -> int:
        """Return the bytes of a checkpoint, over all ranks."""
        return super().trained_bytes() * self._rank_group.size

    async def watch(self) -> None:
        """Wait until cancelled; raise RankLost once another rank is lost, also between commands."""
        others = range(1, self._rank_group.size)
        watch = HeartbeatWatch(self._rank_group.heartbeat, others, self._rank_group.timeout_s)
        while True:
            if self._workers is not None:
                self._workers.check()
            await asyncio.to_thread(watch.check)
            await asyncio.sleep(BEAT_S)

    def done(self) -> None:
        """End this thread and the other ranks after their present command."""
        self._pool.submit(self._leave)
        super().done()
        if self._workers is not None:
            self._workers.end()

    def _leave(self) -> None:
        with contextlib.suppress(RankLost):
            self._commands.send(Command.STOP)
        self._rank_group.close()
