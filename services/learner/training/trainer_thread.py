"""The torch side of a learner: one thread that owns the model, so that every call sees the same thread pool.

Decides nothing; holds the trainer between steps and says how long things took.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from banyan.recipe import Recipe
from services.chassis.process.cores import CoreShare, follow
from services.chassis.rpc.health import Pulse
from services.chassis.weights import file
from services.chassis.weights.file import WeightManifest
from services.learner.checkpoints.checkpoint import Adapter, Mark, Snapshot
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

# Deadlines of what runs in the thread, each some times the longest that was measured or that the field's models need.
LOAD_S = 1800.0  # hundreds of gigabytes from a slow disk, and the wait for all ranks
PASS_S = 600.0  # forward and backward of one row of tokens_per_row tokens; the first one compiles its kernels
ORDER_S = 600.0  # all else: a study of a batch, weights out, a snapshot


@dataclass(frozen=True, slots=True)
class Timed:
    """A step's report with its wall-clock seconds."""

    report: "StepReport"
    seconds: float


class TorchThread:
    """Loads, trains, hands out. All but `done` run in its thread; the trainer's memory is bounded by tokens_per_row."""

    _local = (0, 1)  # its rank on this machine, and how many there are

    def __init__(self, recipe: Recipe, threads: int | None, share: CoreShare | None = None) -> None:
        """share: how many threads it may use later on; of several ranks each keeps what it began with."""
        self._recipe, self._threads = recipe, threads
        self._follow = follow(share or CoreShare(None, threads))
        self.pulse = Pulse("torch")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="torch")
        self._trainer: Trainer | None = None
        self.dtype_name = ""
        self._base: BaseModel | None = None  # of a run that trains an adapter

    async def run(self, function: Callable[[], T], doing: str = "an order", within_s: float = ORDER_S) -> T:
        """Runs a function in the torch thread, which says so to health with a deadline."""

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
        """Where it computes, once loaded."""
        return self.trainer.model.device

    async def load(self, folder: Path, resumed: bool, base: Path | None = None) -> None:
        """Loads the model in a folder, and Adam's state if the folder is a checkpoint. `base`: where the reference policy
        is, loaded only if the loss needs one."""
        await self.run(lambda: self._load(folder, resumed, base), "loading the model", LOAD_S)

    def _load(self, folder: Path, resumed: bool, base: Path | None) -> None:
        from safetensors.torch import load_file

        from services.learner import losses
        from services.learner.checkpoints import checkpoint
        from services.learner.model import attention_check, device
        from services.learner.training import reference, trainer

        trainer.settle(self._threads)
        at = device.choose(self._recipe.resources.learner_device, self._recipe.deterministic, *self._local)
        device.set_current(at)
        dtype = device.compute_dtype(self._recipe.resources.dtype, at)
        self.dtype_name = str(dtype).removeprefix("torch.")
        optimise = self._recipe.optimise
        wanted = base is not None and losses.build(optimise.loss, optimise.loss_settings).needs_reference
        frozen = reference.load(base, dtype, at) if base is not None and wanted else None
        model = self._model(folder, resumed, base).to(at)  # type: ignore[arg-type]  # transformers decorates it
        attention_check.check(model)
        self._trainer = self._made(model, optimise, dtype, self._recipe.seed, frozen)
        self._trainer.passed = lambda: self.pulse.beat("a pass of a step", PASS_S)
        log.info("training on %s in %s", at, self.dtype_name)
        if resumed:
            self._trainer.restore_moments(load_file(folder / checkpoint.OPTIMIZER))

    def _made(self, *given: Any) -> "Trainer":
        """A trainer of what it is made of; one of several ranks has another (services/learner/ranks)."""
        from services.learner.training import trainer

        return trainer.Trainer(*given)

    def pack(self, pieces: Iterable[TreePart], budget: int) -> list[PackedSequence]:
        """Pieces of trees → rows that this trainer takes."""
        return packing.pack(pieces, budget)

    async def watch(self) -> None:
        """Until cancelled; raises what ends the learner while nothing is asked of it. For one process there is nothing."""
        await asyncio.Event().wait()

    def _model(self, folder: Path, resumed: bool, base: Path | None) -> "PreTrainedModel":
        """The model to train: of a run that trains an adapter the base with it, as the checkpoint has it if there is one."""
        from services.learner.model import load as model
        from services.learner.model import lora as adapter

        lora = self._recipe.optimise.lora
        if lora is None:
            return model.load(folder)
        assert base is not None, "an adapter needs its base"
        self._base = adapter.BaseModel.of(base, self._recipe.model)
        return adapter.load(base, lora, self._recipe.seed, folder if resumed else None, self._base)

    async def step(self, rows: Sequence[PackedSequence], step: int, sizes: Sequence[int] = ()) -> Timed:
        """The optimizer steps of a batch; sizes: rows of each minibatch."""

        def train() -> Timed:
            self._follow()
            begun = time.monotonic()
            return Timed(self.trainer.step(rows, step, sizes), time.monotonic() - begun)

        return await self.run(train, "a step", PASS_S)

    async def drift(self, rows: Sequence[PackedSequence]) -> dict[str, float]:
        """Measure the distance from the model that the run began with on a probe's rows; services/learner/training/drift.py."""
        return await self.run(lambda: self.trainer.drift(rows))

    async def reserve(self, weights: WeightFolder) -> None:
        """Gets room for the weights that will be handed out."""
        await self.run(lambda: weights.reserve(file.size_of(self._published()[0], self.dtype_name)))

    async def hand_out(self, weights: WeightFolder, epoch: int, step: int) -> WeightManifest:
        """Writes the weights as the model computes with them."""

        def put() -> WeightManifest:
            tensors, adapter = self._published()
            return weights.put(tensors, epoch, step, self.dtype_name, self._canary(), adapter)

        return await self.run(put)

    def _published(self) -> "tuple[Mapping[str, torch.Tensor], Mapping[str, Any] | None]":
        """Whole weights, which any engine takes; an adapter with its configuration where the engine was started for one."""
        resources, masters = self._recipe.resources, self.trainer.masters
        if masters.adapted and resources.engine == "vllm" and resources.engine_settings.get("lora_rank"):
            return masters.exact(), self._config()
        return self.trainer.published(), None

    def _config(self) -> dict[str, Any]:
        from services.learner.model import lora as adapter

        assert self._base is not None
        return adapter.config(self.trainer.model, self._base.name)

    def _canary(self) -> dict[str, Any] | None:
        """Only for engines whose weights cannot be looked at: it costs a forward pass."""
        from services.learner.model import canary

        if self._recipe.resources.engine != "vllm":
            return None
        return canary.of(self.trainer.model, self.dtype_name)

    async def snapshot(self, mark: Mark, apart: bool) -> Snapshot:
        """The exact state; copied where training goes on while it is written."""

        def take() -> Snapshot:
            held = Snapshot(mark, self.trainer.masters.exact(), self.trainer.moments(), self._adapter())
            return held.apart() if apart else held

        return await self.run(take)

    def _adapter(self) -> Adapter | None:
        return None if self._base is None else Adapter(self._config(), self._base.digest)

    def weight_bytes(self) -> int:
        """Bytes of one version as it is handed out, at most."""
        return sum(p.numel() for p in self.trainer.model.parameters()) * (2 if self.dtype_name == "bfloat16" else 4)

    def trained_bytes(self) -> int:
        """Bytes of what a checkpoint holds: float32 weights that are trained, and two moments of each."""
        return sum(w.numel() for w in self.trainer.masters.weights) * 12

    def done(self) -> None:
        """Ends the thread after what it is doing."""
        self._pool.shutdown(wait=True)
