"""One optimizer step on the rows of a batch: forward and backward row by row, clip, AdamW, guard against NaN.

The loss is normalised over the whole batch, so the number of rows changes nothing but memory. Rows and parameters are
taken in a fixed order: the same batch on the same weights gives the same bits on one machine and thread count.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from banyan.recipe import Optimise
from services.learner import head, losses
from services.learner.losses.aggregate import Totals
from services.learner.masters import Masters
from services.learner.model import output_weight, predictions, states
from services.learner.packing import Row


@dataclass(frozen=True)
class StepReport:
    """Numbers of one step. `applied` is False where nothing was learned: no row, or a gradient that is not finite."""

    applied: bool
    loss: float = 0.0
    grad_norm: float = 0.0
    mismatch_kl: float = 0.0
    entropy: float = 0.0
    clip_fraction: float = 0.0
    foreign_fraction: float = 0.0
    learning_rate: float = 0.0
    finite: bool = True
    head: Mapping[str, float] = field(default_factory=dict)


@dataclass
class _Sums:
    """What the rows add up to; `per_token` sums run over trained path tokens."""

    loss: float = 0.0
    mismatch: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    foreign: float = 0.0


class Trainer:
    """A model with its master weights and AdamW, and the head that learns beside it where the recipe asks for one."""

    def __init__(
        self, model: PreTrainedModel, optimise: Optimise, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> None:
        self.model, self.optimise = model, optimise
        self.loss = losses.build(optimise.loss, optimise.loss_settings)
        self.masters = Masters(model, dtype)
        matrices = [w for w in self.masters.weights if w.dim() > 1]
        vectors = [w for w in self.masters.weights if w.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": optimise.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(groups, lr=optimise.learning_rate, betas=optimise.betas, fused=True)
        output = output_weight(model)
        self.head = head.made(output.shape[1], optimise.head, seed, output.device)

    def step(self, rows: Sequence[Row], step: int) -> StepReport:
        """Trains on the rows of the batch that makes policy `step + 1`."""
        totals = Totals(sum(int(r.mask_P_T.sum()) for r in rows), sum(len(r.mask_P_T) for r in rows))
        if not totals.tokens:
            return StepReport(applied=False)
        self.masters.clear()
        sums = _Sums()
        for row in rows:
            self._row(row, totals, sums)
        norm = self._clip()
        rate = learning_rate(self.optimise, step)
        finite = math.isfinite(norm) and math.isfinite(sums.loss)
        if finite:
            self._update(rate)
        n, told = totals.tokens, self._teach(finite)
        means = (sums.mismatch / n, sums.entropy / n, sums.clipped / n, sums.foreign / n)
        return StepReport(finite, sums.loss, norm, *means, learning_rate=rate, finite=finite, head=told)

    def _teach(self, finite: bool) -> Mapping[str, float]:
        """The head's step. A batch that changes nothing in the model changes nothing in the head: the policy is the same."""
        if self.head is None or not finite:
            if self.head is not None:
                self.head.forget()
            return {}
        return self.head.step()

    def _row(self, row: Row, totals: Totals, sums: _Sums) -> None:
        state_N_H = states(self.model, row)
        if self.head is not None:
            self.head.observe(state_N_H, row.watched)
        logp_E, entropy_R = predictions(self.model, state_N_H, row)
        facts = {n: torch.from_numpy(getattr(row, f"{n}_P_T")).to(logp_E.device) for n in _FACTS}
        index, mask = facts["index"], facts["mask"]
        logp_P_T = logp_E[index]
        current = logp_P_T.detach()
        old = torch.where(facts["foreign"], facts["behaviour"].to(current.dtype), current)
        loss_P_T, clipped = self.loss.per_token(logp_P_T, old, facts["advantage"].to(current.dtype), mask)
        weight_P_T = self.loss.aggregate.weights(mask, totals, current.dtype)
        loss = (loss_P_T.masked_fill(~mask, 0.0) * weight_P_T).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        sums.loss += float(loss.detach())
        sums.mismatch += float(mismatch(facts["drawn"].to(current.dtype), current)[mask].sum())
        sums.entropy += float(entropy_R[torch.from_numpy(row.row_E).to(entropy_R.device)][index][mask].sum())
        sums.clipped += float(clipped.sum())
        sums.foreign += float((facts["foreign"] & mask).sum())

    def _clip(self) -> float:
        gradients = self.masters.gradients()
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if math.isfinite(norm) and norm > self.optimise.clip_norm:
            torch._foreach_mul_(gradients, self.optimise.clip_norm / norm)
        return norm

    def _update(self, rate: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.masters.publish()

    def published(self) -> dict[str, torch.Tensor]:
        """All tensors that go out with a policy, as they are computed with."""
        return self.masters.computed() | (self.head.published() if self.head is not None else {})

    def moments(self) -> dict[str, torch.Tensor]:
        """Adam's state by parameter, empty before the first step, and all of the head's."""
        state = self.adam.state
        named = zip(self.masters.names, self.masters.weights, strict=True)
        kept = {f"{kind}.{name}": state[w][kind] for name, w in named if w in state for kind in _MOMENTS}
        return kept | (self.head.state() if self.head is not None else {})

    def restore_moments(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Takes Adam's and the head's state from a checkpoint; with its weights loaded, training goes on bit for bit."""
        if self.head is not None:
            self.head.restore(moments)
        self.adam.state.clear()
        for name, weight in zip(self.masters.names, self.masters.weights, strict=True):
            if f"step.{name}" in moments:
                self.adam.state[weight] = {kind: moments[f"{kind}.{name}"].clone() for kind in _MOMENTS}


def learning_rate(optimise: Optimise, step: int) -> float:
    """Rate of the step that makes policy `step + 1`: linear warm-up, then constant or linear decay."""
    warm = min(1.0, (step + 1) / max(1, optimise.warmup_steps))
    left = max(0.0, 1.0 - step / optimise.decay_steps) if optimise.decay_steps else 1.0
    return optimise.learning_rate * warm * left


_FACTS = ("index", "mask", "foreign", "behaviour", "drawn", "advantage")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def mismatch(drawn: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
    """k3 estimate of KL(sampling ‖ training) per token: e^d − d − 1 with d = current − drawn."""
    difference = (current - drawn).clamp(-20.0, 20.0)
    return difference.exp() - difference - 1


def settle(threads: int | None) -> None:
    """Threads, determinism and memory of this process; once, before the first step."""
    if threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a pass over every tensor
    _keep_memory()


def _keep_memory() -> None:
    """Tells glibc to keep freed memory: activations come and go each step, and 200,000 page faults cost 0.5 s of it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
