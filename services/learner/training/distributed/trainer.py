"""The trainer of one rank: the same steps on all, each rank on its own sequences and shards.

The loss of a rank's sequences is normalised over the batch's tokens, not its own. FSDP2 then
averages gradients over ranks, so the loss is multiplied by their number: the result is the gradient
of the batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from services.learner.losses.aggregate import Totals, totals_of
from services.learner.model import canary
from services.learner.model.load import Pass
from services.learner.packing.packing import PackedSequence
from services.learner.packing.silent import NONE, Silent
from services.learner.training.adam_state import KINDS
from services.learner.training.distributed import split
from services.learner.training.distributed.fsdp_module import sharded
from services.learner.training.distributed.rank_group import RankGroup
from services.learner.training.distributed.shards import Shards, restored
from services.learner.training.step_sums import StepSums
from services.learner.training.trainer import Sequences, StepReport, Trainer


class RankTrainer(Trainer):
    """A trainer whose every method but `price` is a collective: all ranks call them in one order.

    arguments: those of Trainer
    """

    def __init__(self, rank_group: RankGroup, *arguments: Any) -> None:
        self._rank_group = rank_group
        super().__init__(*arguments)

    def _make_masters(self, model: PreTrainedModel, dtype: torch.dtype) -> Any:
        rank, size = self._rank_group.rank, self._rank_group.size
        self._module = sharded(model, dtype, size)
        self._module.softening = self.loss.softening
        self._shards = Shards(self._module, dtype, rank, size)
        return self._shards

    # -- a step --

    def step(
        self, sequences: Sequences, step: int, sizes: Sequence[int] = (), silent: Silent = NONE
    ) -> StepReport:
        """Train on this rank's sequences of the batch that makes policy `step + 1`.

        silent: of all ranks
        """
        with self._rank_group.guarded(f"step {step}"):
            return super().step(sequences, step, sizes, silent)

    def drift(self, sequences: Sequences) -> dict[str, float]:
        """Measure the distance from the start, on sequences that every rank has."""
        with self._rank_group.guarded("measuring the drift"):
            return super().drift(sequences)

    def compute(self, sequence: PackedSequence) -> Pass:
        """Run one pass, for which parameters are gathered layer by layer."""
        self._rank_group.heartbeat.count_pass()
        self.on_pass()
        result: Pass = self._module(sequence)
        return result

    def _accumulate(
        self,
        sequence: PackedSequence,
        proximal_E: torch.Tensor | None,
        totals: Totals,
        sums: StepSums,
        *,
        first: bool,
    ) -> tuple[float, torch.Tensor]:
        if not split.is_empty(sequence):
            return super()._accumulate(sequence, proximal_E, totals, sums, first=first)
        logp_E = self.compute(sequence).logp_E
        self._backward(0.0 * logp_E.sum())
        return 0.0, logp_E.detach()

    def _backward(self, loss: torch.Tensor) -> None:
        super()._backward(loss * self._rank_group.size)

    def _summed(self, own: Sequence[float]) -> Sequence[float]:
        tensor = torch.tensor(own, dtype=torch.float64)
        dist.all_reduce(tensor)
        summed: list[float] = tensor.tolist()
        return summed

    def _totals(self, sequences: Sequences) -> Totals:
        own = totals_of([sequence for sequence in sequences if not split.is_empty(sequence)])
        tokens, paths, unique = self._summed((own.tokens, own.paths, own.unique))
        return Totals(int(tokens), int(paths), unique)

    def _over_ranks(self, sums: StepSums) -> StepSums:
        """Return the sums of all ranks, added in their order."""
        by_rank: list[Any] = [None] * self._rank_group.size
        dist.all_gather_object(by_rank, sums)
        total = StepSums(losses=sums.losses, norms=sums.norms, applied=sums.applied)
        for other in by_rank:
            total.add_rank(other)
        return total

    def _norm(self, gradients: list[torch.Tensor]) -> float:
        squares = [
            float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
            for gradient in gradients
            if gradient.numel()
        ]
        return float(self._summed([sum(squares)])[0] ** 0.5)

    def _step_head(self, applied: bool) -> Mapping[str, float]:
        """Take the head's step on rank 0, from the observations of all ranks, in their order."""
        if self.head is None:
            return {}
        is_first = self._rank_group.rank == 0
        parts: list[Any] | None = [None] * self._rank_group.size if is_first else None
        dist.gather_object(self.head.pop_batch(), parts, dst=0)
        if parts is None:
            return {}
        self.head.set_batch(batch for part in parts for batch in part)
        return super()._step_head(applied)

    # -- weights and state: whole on rank 0, empty on others --

    def published(self) -> dict[str, torch.Tensor]:
        """Return all tensors of a published policy."""
        with self._rank_group.guarded("gathering weights"):
            tensors = self._shards.computed()
        if self.head is None or not tensors:
            return tensors
        return tensors | self.head.published()

    def canary(self, dtype: str) -> dict[str, Any]:
        """Return the canary of these weights."""
        with self._rank_group.guarded("the canary"):
            return canary.of(self.model, dtype, self.compute)

    def exact(self) -> dict[str, torch.Tensor]:
        """Return the float32 weights for a checkpoint."""
        with self._rank_group.guarded("gathering weights for a checkpoint"):
            return self._shards.exact()

    def moments(self) -> dict[str, torch.Tensor]:
        """Return Adam's state by parameter (empty before the first step), and the head's."""
        with self._rank_group.guarded("gathering moments"):
            moments = self._adam_state()
        if self.head is None or self._rank_group.rank != 0:
            return moments
        # Copied, as all else here is: a checkpoint is written while the head goes on learning.
        return moments | {name: tensor.clone() for name, tensor in self.head.state().items()}

    def _adam_state(self) -> dict[str, torch.Tensor]:
        state = self.adam.state
        states = [state[weight] for weight in self._shards.weights if weight in state]
        if not states:
            return {}
        moments: dict[str, torch.Tensor] = {}
        for name, own in zip(self._shards.names, states, strict=True):
            moments[f"step.{name}"] = own["step"].clone()
        for kind in KINDS:
            if kind != "step":
                whole = self._shards.whole(own[kind] for own in states)
                moments |= {f"{kind}.{name}": tensor for name, tensor in whole}
        return moments if self._rank_group.rank == 0 else {}

    def restore_moments(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Restore this rank's rows of Adam's state, and on rank 0 the head's.

        The checkpoint may be of any number of ranks.
        """
        if self.head is not None and self._rank_group.rank == 0:
            self.head.restore(moments)
        own = restored(self._shards, moments, KINDS)
        self.adam.state.clear()
        for name, weight in zip(self._shards.names, self._shards.weights, strict=True):
            if name in own:
                self.adam.state[weight] = own[name]
