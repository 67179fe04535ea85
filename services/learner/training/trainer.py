"""The optimizer steps of a batch: forward and backward row by row, clip, AdamW, guard against NaN.

The loss is normalised over the whole minibatch, so the number of rows changes nothing but memory. Rows and parameters are
taken in a fixed order: the same batch on the same weights gives the same bits on one machine and thread count. Where a batch
has several steps, ratios are taken to the log-probs of the weights that it began with.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from transformers import PreTrainedModel

from banyan.errors import NotReady
from banyan.recipe import Optimise
from banyan.runtime import torch_environment
from services.learner import losses
from services.learner.data.credit import ScoredTree
from services.learner.losses.aggregate import Totals
from services.learner.losses.tally import Tally
from services.learner.losses.tokens import Tokens
from services.learner.model import lora
from services.learner.model import value_head as head
from services.learner.model.load import Pass, budget, forward, output_weight, recompute
from services.learner.model.master_weights import Masters
from services.learner.packing.packing import PackedSequence
from services.learner.training import drift, gather, reference
from services.learner.training.schedule import learning_rate


@dataclass(frozen=True)
class StepReport:
    """Numbers of a batch's steps. `applied` is False where nothing was learned: no row, or no gradient that is finite.
    loss, grad_norm and what the loss measures are means over the steps; the others are of its first epoch. skipped:
    optimizer steps that were not taken, as their loss or gradient is not finite."""

    applied: bool
    loss: float = 0.0
    grad_norm: float = 0.0
    mismatch_kl: float = 0.0
    entropy: float = 0.0
    clip_fraction: float = 0.0
    foreign_fraction: float = 0.0
    learning_rate: float = 0.0
    finite: bool = True
    skipped: int = 0
    head: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass
class _Sums:
    """What the rows add up to, over sampled path tokens; `tally` what their loss says of them. losses, norms: by step."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    applied: int = 0
    mismatch: float = 0.0
    entropy: float = 0.0
    foreign: float = 0.0
    tokens: int = 0
    tally: Tally = field(default_factory=Tally)

    def watch(self, tokens: Tokens) -> None:
        """Takes what does not depend on the loss."""
        sampled = tokens.sampled_P_T
        self.mismatch += float(mismatch(tokens.behaviour_P_T, tokens.proximal_P_T)[sampled].sum())
        self.entropy += float(tokens.entropy_P_T.detach()[sampled].sum())
        self.foreign += float((tokens.foreign_P_T & sampled).sum())
        self.tokens += int(sampled.sum())
        self.tally.watch(tokens)


class Trainer:
    """A model with its master weights and AdamW, and the head that learns beside it where the recipe asks for one."""

    def __init__(
        self,
        model: PreTrainedModel,
        optimise: Optimise,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        frozen: PreTrainedModel | None = None,
    ) -> None:
        self.model, self.optimise, self.reference = model, optimise, frozen
        self.passed: Callable[[], None] = lambda: None  # who is told of each pass that begins
        self.loss = losses.build(optimise.loss, optimise.loss_settings)
        if self.loss.needs_reference and frozen is None:
            raise NotReady(f"loss {optimise.loss!r} needs the log-probs of a reference policy, and there is none")
        self.budget = budget(model, optimise.tokens_per_row)
        if not self.budget and self.loss.targets.pairs:
            kind = model.config.model_type
            raise NotReady(
                f"loss {optimise.loss!r} takes pairs, and model type {kind!r} is trained flat: take a loss of paths"
            )
        if optimise.recompute:
            recompute(model)
        self.masters = self._held(model, dtype)
        matrices = [w for w in self.masters.weights if w.dim() > 1]
        vectors = [w for w in self.masters.weights if w.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": optimise.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        rate, betas, epsilon = optimise.learning_rate, optimise.betas, optimise.epsilon
        self.adam = torch.optim.AdamW(groups, lr=rate, betas=betas, eps=epsilon, fused=True)
        output = output_weight(model)
        self.head = head.build(output.shape[1], optimise.head, seed, output.device)

    def step(self, rows: Sequence[PackedSequence], step: int, sizes: Sequence[int] = ()) -> StepReport:
        """Trains on the rows of the batch that makes policy `step + 1`. sizes: rows of each minibatch, an optimizer step
        of each epoch; all rows are one by default."""
        minibatches = [rows for rows in _split(rows, sizes) if self._totals(rows).tokens]
        rate, sums = learning_rate(self.optimise, step), _Sums()
        if not minibatches:
            return StepReport(applied=False, learning_rate=rate)
        # Those of the first minibatch are what its first pass says.
        proximal_M: list[list[torch.Tensor | None]] = [[None] * len(minibatches[0])]
        proximal_M += [self._proximal(rows) for rows in minibatches[1:]]
        for epoch in range(self.optimise.epochs):
            for number, minibatch in enumerate(minibatches):
                seen = self._minibatch(minibatch, proximal_M[number], rate, sums, epoch == 0)
                if not epoch and not number:
                    proximal_M[0] = seen
        return self._report(rate, self._joined(sums))

    def drift(self, rows: Sequence[PackedSequence]) -> dict[str, float]:
        """Measure `start_kl` on a probe's rows, and `whole_rate`: the learning rate at which one step of Adam would move the
        weights by as much as they are, each number that is trained by the rate."""
        kl = drift.measured(rows, self.compute)
        found = {} if kl is None else {"start_kl": kl}
        squares, moved = self._pooled(self._sizes())
        return found | {"whole_rate": math.sqrt(squares / moved)}

    def _sizes(self) -> Sequence[float]:
        """Squares of the weights that a step moves, and of how far it moves them at a rate of 1."""
        if self.masters.adapted:
            return lora.squared_norms(self.model, dict(zip(self.masters.names, self.masters.weights, strict=True)))
        norms = [float(torch.linalg.vector_norm(w.detach())) for w in self.masters.weights]
        return sum(norm**2 for norm in norms), float(sum(w.numel() for w in self.masters.weights))

    def _report(self, rate: float, sums: _Sums) -> StepReport:
        n, told, said, steps = max(1, sums.tokens), self._teach(sums.applied > 0), sums.tally.means(), len(sums.losses)
        means = (sums.mismatch / n, sums.entropy / n, said.pop("clip_fraction", 0.0), sums.foreign / n)
        loss, norm, said = _mean(sums.losses), _mean(sums.norms), said | {"optimizer_steps": float(sums.applied)}
        applied, skipped = sums.applied > 0, steps - sums.applied
        finite = not skipped
        return StepReport(applied, loss, norm, *means, rate, finite, head=told, measures=said, skipped=skipped)

    @torch.no_grad()
    def _proximal(self, rows: Sequence[PackedSequence]) -> list[torch.Tensor | None]:
        """By row: the log-probs of its predictions, of the weights that the batch begins with."""
        return [self.compute(row).logp_E for row in rows]

    def _minibatch(
        self, rows: Sequence[PackedSequence], proximal: Sequence[torch.Tensor | None], rate: float, sums: _Sums, first: bool
    ) -> list[torch.Tensor | None]:
        """One optimizer step; the log-probs before it. first: whether these rows are seen for the first time."""
        totals = self._totals(rows)
        if self.loss.needs_survey:
            totals = replace(totals, weight=self._survey(rows, proximal))
        self.masters.clear()
        done = [self._row(row, old_E, totals, sums, first) for row, old_E in zip(rows, proximal, strict=True)]
        loss, norm = self._pooled([sum(value for value, _ in done)])[0], self._clip()
        if math.isfinite(norm) and math.isfinite(loss):
            self._update(rate)
            sums.applied += 1
        sums.losses.append(loss)
        sums.norms.append(norm)
        return [logp_E for _, logp_E in done]

    @torch.no_grad()
    def _survey(self, rows: Sequence[PackedSequence], proximal: Sequence[torch.Tensor | None]) -> float:
        """The minibatch's mean importance weight."""
        pairs = zip(rows, proximal, strict=True)
        seen = [self.loss.survey(gather.tokens(row, self.compute(row), old_E)) for row, old_E in pairs]
        total, of = self._pooled([sum(total for total, _ in seen), sum(of for _, of in seen)])
        return total / max(1.0, of) or 1.0

    # -- what one of several ranks does otherwise (services/learner/training/distributed/trainer.py) --

    def _held(self, model: PreTrainedModel, dtype: torch.dtype) -> Masters:
        """The weights that are trained."""
        return Masters(model, dtype)

    def compute(self, row: PackedSequence) -> Pass:
        """The only way to a pass of the policy."""
        self.passed()
        return forward(self.model, row, self.loss.softening)

    def _pooled(self, sums: Sequence[float]) -> Sequence[float]:
        """Sums over this process's rows, made sums over the batch's."""
        return sums

    def _totals(self, rows: Sequence[PackedSequence]) -> Totals:
        return totals_of(rows)

    def _joined(self, sums: _Sums) -> _Sums:
        return sums

    def _norm(self, gradients: list[torch.Tensor]) -> float:
        return float(torch.nn.utils.get_total_norm(gradients))

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    # -- its parts --

    def _teach(self, finite: bool) -> Mapping[str, float]:
        """The head's step. A batch that changes nothing in the model changes nothing in the head: the policy is the same."""
        if self.head is None or not finite:
            if self.head is not None:
                self.head.drop_batch()
            return {}
        return self.head.step()

    def _row(
        self, row: PackedSequence, proximal_E: torch.Tensor | None, totals: Totals, sums: _Sums, first: bool
    ) -> tuple[float, torch.Tensor]:
        """Adds a row's gradients; its loss, and the log-probs of its predictions."""
        said = self.compute(row)
        if self.head is not None and first:
            self.head.observe(said.state_U_D, row.head_observations)
        reference_E = self._reference(row)
        tokens = gather.tokens(row, said, proximal_E, reference_E)
        loss, measures = self.loss.compute(tokens, totals)
        self._backward(loss)
        sums.tally.add(measures)
        if first:
            sums.watch(tokens)
        return float(loss.detach()), said.logp_E.detach()

    def priced(self, one: ScoredTree) -> ScoredTree:
        """The tree with the rewards that advantages are estimated from: less the KL where the loss asks for that."""
        kl = self.loss.reward_kl
        if kl is None or self.reference is None:
            return one
        return reference.penalised(one, self.reference, kl, self.budget)

    @torch.no_grad()
    def _reference(self, row: PackedSequence) -> torch.Tensor | None:
        if self.reference is None or not self.loss.needs_reference or self.loss.reward_kl is not None:
            return None
        return forward(self.reference, row).logp_E

    def _clip(self) -> float:
        gradients = self.masters.gradients()
        norm = self._norm(gradients)
        if math.isfinite(norm) and norm > self.optimise.clip_norm:
            torch._foreach_mul_(gradients, self.optimise.clip_norm / norm)
        return norm

    def _update(self, rate: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.masters.copy_to_model()

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
                held = {kind: moments[f"{kind}.{name}"] for kind in _MOMENTS}
                self.adam.state[weight] = {kind: t.to(weight.device, copy=True) for kind, t in held.items()}


def _mean(values: Sequence[float]) -> float:
    """Of those that are finite, if any is: minibatches that were skipped are counted, and hide nothing of the others."""
    finite = [value for value in values if math.isfinite(value)] or values
    return sum(finite) / len(finite)


def _split(rows: Sequence[PackedSequence], sizes: Sequence[int]) -> list[Sequence[PackedSequence]]:
    """The rows of each minibatch."""
    ends = list(accumulate(sizes or [len(rows)]))
    return [rows[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def totals_of(rows: Sequence[PackedSequence]) -> Totals:
    """What a batch's rows hold."""
    tokens, paths = sum(int(r.mask_P_T.sum()) for r in rows), sum(len(r.mask_P_T) for r in rows)
    return Totals(tokens, paths, sum(float(r.share_P_T.sum()) for r in rows))


_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def mismatch(behaviour: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
    """Estimate KL(sampling ‖ training) per token by k3: e^d − d − 1 with d = current − behaviour, both of the whole
    vocabulary at the same temperature."""
    difference = (current - behaviour).clamp(-20.0, 20.0)
    return difference.exp() - difference - 1


def settle(threads: int | None) -> None:
    """Threads, determinism and memory of this process; once, before the first step."""
    if threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a pass over every tensor
    torch_environment.keep_memory()
