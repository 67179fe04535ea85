"""A trainer of which every rank has one: the same steps, each rank on its own rows and its own shards.

The loss of a rank's rows is taken over the batch's tokens, not its own; FSDP2 then averages gradients over ranks, so it is
multiplied by their number: what comes out is the gradient of the batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from services.learner.losses.aggregate import Totals
from services.learner.model import canary
from services.learner.model.load import Pass
from services.learner.packing.packing import PackedSequence
from services.learner.training.distributed import split
from services.learner.training.distributed.shards import Shards, restored
from services.learner.training.distributed.whole import sharded
from services.learner.training.distributed.world import RankGroup
from services.learner.training.trainer import _MOMENTS, StepReport, Trainer, _Sums, totals_of


class RankTrainer(Trainer):
    """Every method but `priced` is a collective: all ranks call it, in the same order."""

    def __init__(self, world: RankGroup, *given: Any) -> None:
        self._world = world
        super().__init__(*given)

    def _held(self, model: PreTrainedModel, dtype: torch.dtype) -> Any:
        self._whole = sharded(model, dtype, self._world.size)
        self._whole.softening = self.loss.softening
        self._shards = Shards(self._whole, dtype, self._world.rank, self._world.size)
        return self._shards

    # -- a step --

    def step(self, rows: Sequence[PackedSequence], step: int, sizes: Sequence[int] = ()) -> StepReport:
        """Trains on this rank's rows of the batch that makes policy `step + 1`."""
        with self._world.named(f"step {step}"):
            return super().step(rows, step, sizes)

    def drift(self, rows: Sequence[PackedSequence]) -> dict[str, float]:
        """Measure the distance from the start, on rows that every rank has."""
        with self._world.named("measuring the drift"):
            return super().drift(rows)

    def compute(self, row: PackedSequence) -> Pass:
        """One pass; parameters are gathered layer by layer."""
        self._world.pulse.passed()
        self.passed()
        found: Pass = self._whole(row)
        return found

    def _row(
        self, row: PackedSequence, proximal_E: torch.Tensor | None, totals: Totals, sums: _Sums, first: bool
    ) -> tuple[float, torch.Tensor]:
        if not split.is_empty(row):
            return super()._row(row, proximal_E, totals, sums, first)
        logp_E = self.compute(row).logp_E
        self._backward(0.0 * logp_E.sum())
        return 0.0, logp_E.detach()

    def _backward(self, loss: torch.Tensor) -> None:
        super()._backward(loss * self._world.size)

    def _pooled(self, sums: Sequence[float]) -> Sequence[float]:
        held = torch.tensor(sums, dtype=torch.float64)
        dist.all_reduce(held)
        pooled: list[float] = held.tolist()
        return pooled

    def _totals(self, rows: Sequence[PackedSequence]) -> Totals:
        own = totals_of([row for row in rows if not split.is_empty(row)])
        tokens, paths, unique = self._pooled((own.tokens, own.paths, own.unique))
        return Totals(int(tokens), int(paths), unique)

    def _joined(self, sums: _Sums) -> _Sums:
        """Those of all ranks, added in their order. Losses and norms are the batch's already."""
        found: list[Any] = [None] * self._world.size
        dist.all_gather_object(found, sums)
        joined = type(sums)(sums.losses, sums.norms, sums.applied)
        for other in found:
            for name in ("mismatch", "entropy", "foreign", "tokens"):
                setattr(joined, name, getattr(joined, name) + getattr(other, name))
            joined.tally.join(other.tally)
        return joined

    def _norm(self, gradients: list[torch.Tensor]) -> float:
        squares = [float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2 for g in gradients if g.numel()]
        return float(self._pooled([sum(squares)])[0] ** 0.5)

    def _teach(self, finite: bool) -> Mapping[str, float]:
        """The head learns on rank 0, from what all ranks have seen, in their order."""
        if self.head is None:
            return {}
        parts: list[Any] | None = [None] * self._world.size if self._world.rank == 0 else None
        dist.gather_object(self.head.pop_batch(), parts, dst=0)
        if parts is None:
            return {}
        self.head.set_batch(batch for part in parts for batch in part)
        return super()._teach(finite)

    # -- what is kept: whole on rank 0, empty on others --

    def published(self) -> dict[str, torch.Tensor]:
        """All tensors that go out with a policy."""
        with self._world.named("gathering weights"):
            found = self._shards.computed()
        return found | (self.head.published() if self.head is not None and found else {})

    def canary(self, dtype: str) -> dict[str, Any]:
        """What these weights say of the canary's tokens."""
        with self._world.named("the canary"):
            return canary.of(self.model, dtype, self.compute)

    def exact(self) -> dict[str, torch.Tensor]:
        """The float32 weights for a checkpoint."""
        with self._world.named("gathering weights for a checkpoint"):
            return self._shards.exact()

    def moments(self) -> dict[str, torch.Tensor]:
        """Adam's state by parameter, empty before the first step, and all of the head's."""
        with self._world.named("gathering moments"):
            found = self._moments()
        if self.head is None or self._world.rank != 0:
            return found
        # Copied, as all else here is: a checkpoint is written while the head goes on learning.
        return found | {name: tensor.clone() for name, tensor in self.head.state().items()}

    def _moments(self) -> dict[str, torch.Tensor]:
        held = [self.adam.state[w] for w in self._shards.weights if w in self.adam.state]
        if not held:
            return {}
        found = {f"step.{name}": s["step"].clone() for name, s in zip(self._shards.names, held, strict=True)}
        for kind in (k for k in _MOMENTS if k != "step"):
            found |= {f"{kind}.{name}": t for name, t in self._shards.whole(s[kind] for s in held)}
        return found if self._world.rank == 0 else {}

    def restore_moments(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Takes this rank's rows of Adam's state, of a checkpoint of any number of ranks; rank 0 the head's."""
        if self.head is not None and self._world.rank == 0:
            self.head.restore(moments)
        found = restored(self._shards, moments, _MOMENTS)
        self.adam.state.clear()
        for name, weight in zip(self._shards.names, self._shards.weights, strict=True):
            if name in found:
                self.adam.state[weight] = found[name]
