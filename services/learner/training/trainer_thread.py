"""The torch side of a learner: one thread owns the model, so every call has the same thread pool.

It makes no decisions; it holds the trainer between steps and measures how long its work takes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from banyan.plugins import Estimator
from banyan.recipe import Recipe
from banyan.v1 import tree_pb2
from services.chassis.process.cores import CoreShare, follow
from services.chassis.rpc.health import Pulse
from services.chassis.weights import file
from services.chassis.weights.file import WeightManifest
from services.learner.checkpoints.checkpoint import Adapter, Mark, Snapshot
from services.learner.data import from_store
from services.learner.data.prepare import Lesson, Preparation
from services.learner.packing import packing
from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import TreePart
from services.learner.weights.folder import WeightFolder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from services.learner.model.lora import BaseModel
    from services.learner.training.trainer import StepReport, Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")

# Deadlines of work in the thread: multiples of the longest that was measured, or that is to be
# expected of the largest models in use.
LOAD_S = 1800.0  # hundreds of gigabytes from a slow disk, and the wait for all ranks
PASS_S = 600.0  # forward and backward of tokens_per_row tokens; the first compiles its kernels
TASK_S = 600.0  # all else: preparing a batch, writing weights, a snapshot


@dataclass(frozen=True, slots=True)
class Timed:
    """A step's report with its wall-clock seconds."""

    report: "StepReport"
    seconds: float


class TorchThread:
    """Loads, trains and writes weights. All but `done` runs in its thread.

    The trainer's memory is bounded by tokens_per_row.

    share: number of threads that it may use later on; None keeps `threads`, as several ranks do
    """

    _local = (0, 1)  # its rank on this machine, and the number of ranks there

    def __init__(self, recipe: Recipe, threads: int | None, share: CoreShare | None = None) -> None:
        self._recipe, self._threads = recipe, threads
        self._follow = follow(share or CoreShare(None, threads))
        self.pulse = Pulse("torch")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="torch")
        self._trainer: Trainer | None = None
        self.dtype_name = ""
        self._base: BaseModel | None = None  # of a run that trains an adapter

    async def run(
        self, function: Callable[[], T], doing: str = "a task", within_s: float = TASK_S
    ) -> T:
        """Run a function in the torch thread, which declares it to health with a deadline."""

        def declared() -> T:
            with self.pulse.during(doing, within_s):
                return function()

        return await asyncio.get_running_loop().run_in_executor(self._pool, declared)

    @property
    def trainer(self) -> "Trainer":
        """The trainer, once loaded."""
        assert self._trainer is not None, "load() comes first"
        return self._trainer

    @property
    def device(self) -> "torch.device":
        """The device of the model, once loaded."""
        return self.trainer.model.device

    # -- loading --

    async def load(self, folder: Path, resumed: bool, base: Path | None = None) -> None:
        """Load the model in a folder, and Adam's state if the folder is a checkpoint.

        base: folder of the reference policy, which is loaded only if the loss needs it
        """
        await self.run(lambda: self._load(folder, resumed, base), "loading the model", LOAD_S)

    def _load(self, folder: Path, resumed: bool, base: Path | None) -> None:
        from safetensors.torch import load_file

        from services.learner import losses
        from services.learner.checkpoints import checkpoint
        from services.learner.model import attention_check, device
        from services.learner.training import reference, trainer

        resources, optimise = self._recipe.resources, self._recipe.optimise
        chosen = device.choose(resources.learner_device, self._recipe.deterministic, *self._local)
        device.set_current(chosen)
        trainer.settle(self._threads, chosen)
        dtype = device.compute_dtype(resources.dtype, chosen)
        self.dtype_name = str(dtype).removeprefix("torch.")
        needed = losses.build(optimise.loss, optimise.loss_settings).needs_reference
        frozen = reference.load(base, dtype, chosen) if base is not None and needed else None
        model = self._model(folder, resumed, base)
        model = model.to(chosen)  # type: ignore[arg-type]  # transformers decorates it
        attention_check.check(model)
        self._trainer = self._make_trainer(model, optimise, dtype, self._recipe.seed, frozen)
        self._trainer.on_pass = lambda: self.pulse.beat("a pass of a step", PASS_S)
        log.info("training on %s in %s", chosen, self.dtype_name)
        if resumed:
            self._trainer.restore_moments(load_file(folder / checkpoint.OPTIMIZER))

    def _make_trainer(self, *arguments: Any) -> "Trainer":
        """Return the trainer; one of several ranks has another (distributed/trainer.py)."""
        from services.learner.training import trainer

        return trainer.Trainer(*arguments)

    def _model(self, folder: Path, resumed: bool, base: Path | None) -> "PreTrainedModel":
        """Return the model to train, with its adapter where the run trains one.

        The adapter is the checkpoint's if the folder is one, else new.
        """
        from services.learner.model import load as model
        from services.learner.model import lora as adapter

        lora = self._recipe.optimise.lora
        if lora is None:
            return model.load(folder)
        assert base is not None, "an adapter needs its base"
        self._base = adapter.BaseModel.of(base, self._recipe.model)
        return adapter.load(base, lora, self._recipe.seed, folder if resumed else None, self._base)

    # -- training --

    def preparation(self, estimator: Estimator) -> Preparation:
        """Return how batches are prepared for this trainer, with the advantages of an estimator."""
        trainer, optimise = self.trainer, self._recipe.optimise
        return Preparation(
            estimator=estimator,
            budget=trainer.budget,
            pack=self.pack,
            subtract_kl=trainer.subtract_kl,
            targets=trainer.loss.targets,
            minibatches=optimise.minibatches,
            entropy_quantile=optimise.entropy_quantile,
            most_groups=optimise.most_groups,
            trains_head=optimise.head is not None,
        )

    def pack(self, pieces: Iterable[TreePart], budget: int) -> list[PackedSequence]:
        """Pack pieces of trees into the sequences of this trainer."""
        return packing.pack(pieces, budget)

    async def step(self, lesson: Lesson, step: int) -> Timed:
        """Take the optimizer steps of a batch."""

        def train() -> Timed:
            self._follow()
            begun = time.monotonic()
            report = self.trainer.step(lesson.sequences, step, lesson.sizes, lesson.silent)
            return Timed(report, time.monotonic() - begun)

        return await self.run(train, "a step", PASS_S)

    async def probe(self, trees: Sequence[tree_pb2.Tree]) -> list[PackedSequence]:
        """Return the sequences on which drift is measured, from trees of the run's first batch."""
        from services.learner.training import drift

        def pack() -> list[PackedSequence]:
            return drift.probe(map(from_store.scored_tree, trees), self.trainer.budget)

        return await self.run(pack)

    async def drift(self, sequences: Sequence[PackedSequence]) -> dict[str, float]:
        """Measure the distance from the model that the run began with (drift.py)."""
        return await self.run(lambda: self.trainer.drift(sequences))

    # -- weights and checkpoints --

    async def reserve(self, weights: WeightFolder) -> None:
        """Reserve memory for the weights that will be published."""

        def reserve() -> None:
            weights.reserve(file.size_of(self._published()[0], self.dtype_name))

        await self.run(reserve)

    async def hand_out(self, weights: WeightFolder, epoch: int, step: int) -> WeightManifest:
        """Write the weights into a folder, in the precision of the computation."""

        def put() -> WeightManifest:
            tensors, adapter = self._published()
            return weights.put(
                tensors,
                epoch=epoch,
                step=step,
                dtype=self.dtype_name,
                canary=self._canary(),
                adapter=adapter,
            )

        return await self.run(put)

    def _published(self) -> "tuple[Mapping[str, torch.Tensor], Mapping[str, Any] | None]":
        """Return the tensors to publish, with the configuration of an adapter.

        They are whole weights, which any engine takes, unless the engine was started for an
        adapter.
        """
        resources, masters = self._recipe.resources, self.trainer.masters
        takes_adapter = resources.engine == "vllm" and resources.engine_settings.get("lora_rank")
        if masters.adapted and takes_adapter:
            return masters.exact(), self._adapter_config()
        return self.trainer.published(), None

    def _adapter_config(self) -> dict[str, Any]:
        from services.learner.model import lora as adapter

        assert self._base is not None
        return adapter.config(self.trainer.model, self._base.name)

    def _canary(self) -> dict[str, Any] | None:
        """Return the canary, for engines whose weights cannot be read: it costs a forward pass."""
        from services.learner.model import canary

        if self._recipe.resources.engine != "vllm":
            return None
        return canary.of(self.trainer.model, self.dtype_name)

    async def snapshot(self, mark: Mark, copied: bool) -> Snapshot:
        """Return the exact state; copied where training goes on while it is written."""

        def take() -> Snapshot:
            snapshot = Snapshot(
                mark=mark,
                weights=self.trainer.masters.exact(),
                moments=self.trainer.moments(),
                adapter=self._adapter(),
            )
            return snapshot.copied() if copied else snapshot

        return await self.run(take)

    def _adapter(self) -> Adapter | None:
        return None if self._base is None else Adapter(self._adapter_config(), self._base.digest)

    def weight_bytes(self) -> int:
        """Return the bytes of one published version, at most."""
        parameters = sum(p.numel() for p in self.trainer.model.parameters())
        return parameters * (2 if self.dtype_name == "bfloat16" else 4)

    def trained_bytes(self) -> int:
        """Return the bytes of a checkpoint: trained float32 weights, and two moments of each."""
        return sum(w.numel() for w in self.trainer.masters.weights) * 12

    async def watch(self) -> None:
        """Wait until cancelled; raise what ends the learner between its calls.

        A single process has nothing to watch.
        """
        await asyncio.Event().wait()

    def done(self) -> None:
        """End the thread after its present task."""
        self._pool.shutdown(wait=True)
