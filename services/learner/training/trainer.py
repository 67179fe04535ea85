"""The optimizer steps of a batch: forward and backward pass by pass, clipping, AdamW, NaN guard.

The loss is normalised over the whole minibatch, so the number of packed sequences changes nothing
but memory. Sequences and parameters are processed in a fixed order: the same batch on the same
weights gives the same bits on one machine and thread count. Where a batch has several steps, ratios
are taken to the log-probs of the weights that it began with.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from transformers import PreTrainedModel

from banyan.credit.estimate import ScoredTree
from banyan.errors import NotReady
from banyan.recipe import Optimise
from banyan.runtime import torch_environment
from services.learner import losses
from services.learner.losses.aggregate import Totals, totals_of
from services.learner.model import lora
from services.learner.model import value_head as head
from services.learner.model.load import Pass, budget, forward, output_weight, recompute
from services.learner.model.master_weights import Masters
from services.learner.packing.packing import PackedSequence
from services.learner.packing.silent import NONE, Silent
from services.learner.training import adam_state, drift, gather, reference
from services.learner.training.schedule import learning_rate
from services.learner.training.step_sums import StepSums, mean_of_finite

Sequences = Sequence[PackedSequence]
OldLogprobs = Sequence[torch.Tensor | None]  # [E] by sequence; None: those of the coming pass


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The numbers of a batch's steps.

    `loss`, `grad_norm` and `measures` are means over the optimizer steps; the others are means over
    the tokens of the first epoch.

    applied: whether any weight moved; False without sequences, or without a finite gradient
    learning_rate: rate of all steps of the batch
    finite: whether every step had a finite loss and gradient
    skipped: optimizer steps that were not taken, as their loss or gradient is not finite
    head: numbers of the value head
    measures: numbers of the loss, by name
    """

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


class Trainer:
    """A model with its master weights and AdamW, and the value head where the recipe has one.

    `on_pass` is called at the start of each pass.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimise: Optimise,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        frozen: PreTrainedModel | None = None,
    ) -> None:
        self.model, self.optimise, self.reference = model, optimise, frozen
        self.on_pass: Callable[[], None] = lambda: None
        self.loss = losses.build(optimise.loss, optimise.loss_settings)
        self.budget = budget(model, optimise.tokens_per_row)
        self._refuse_impossible()
        if optimise.recompute:
            recompute(model)
        self.masters = self._make_masters(model, dtype)
        self.adam = adam_state.adam_of(self.masters.weights, optimise)
        output = output_weight(model)
        self.head = head.build(output.shape[1], optimise.head, seed, output.device)

    def _refuse_impossible(self) -> None:
        name = self.optimise.loss
        if self.loss.needs_reference and self.reference is None:
            raise NotReady(
                f"loss {name!r} needs the log-probs of a reference policy, and there is none"
            )
        if not self.budget and self.loss.targets.pairs:
            kind = self.model.config.model_type
            raise NotReady(
                f"loss {name!r} takes pairs, and model type {kind!r} is trained flat:"
                " take a loss of paths"
            )

    def step(
        self, sequences: Sequences, step: int, sizes: Sequence[int] = (), silent: Silent = NONE
    ) -> StepReport:
        """Train on the sequences of the batch that makes policy `step + 1`.

        sizes: number of sequences of each minibatch, which is an optimizer step of each epoch;
            empty for a single minibatch
        silent: what else counts in the means of the batch
        """
        minibatches = [part for part in _split(sequences, sizes) if self._totals(part).tokens]
        rate, sums = learning_rate(self.optimise, step), StepSums()
        if not minibatches:
            return StepReport(applied=False, learning_rate=rate)
        # The old log-probs of the first minibatch are those of its first pass.
        proximal_M: list[OldLogprobs] = [[None] * len(minibatches[0])]
        proximal_M += [self._proximal(part) for part in minibatches[1:]]
        own_silent = silent.share(len(minibatches))
        for epoch in range(self.optimise.epochs):
            for number, minibatch in enumerate(minibatches):
                first, totals = epoch == 0, self._totals(minibatch).beside(own_silent)
                logprobs = self._minibatch(
                    minibatch, proximal_M[number], totals, rate, sums, first=first
                )
                if first and number == 0:
                    proximal_M[0] = logprobs
        return self._report(rate, self._over_ranks(sums))

    def _report(self, rate: float, sums: StepSums) -> StepReport:
        tokens, skipped = max(1, sums.tokens), len(sums.losses) - sums.applied
        head_numbers, measures = self._step_head(sums.applied > 0), sums.tally.means()
        return StepReport(
            applied=sums.applied > 0,
            loss=mean_of_finite(sums.losses),
            grad_norm=mean_of_finite(sums.norms),
            mismatch_kl=sums.mismatch / tokens,
            entropy=sums.entropy / tokens,
            clip_fraction=measures.pop("clip_fraction", 0.0),
            foreign_fraction=sums.foreign / tokens,
            learning_rate=rate,
            finite=not skipped,
            skipped=skipped,
            head=head_numbers,
            measures=measures | {"optimizer_steps": float(sums.applied)},
        )

    @torch.no_grad()
    def _proximal(self, sequences: Sequences) -> OldLogprobs:
        """Return the log-probs of the weights that the batch begins with, by sequence."""
        return [self.compute(sequence).logp_E for sequence in sequences]

    def _minibatch(
        self,
        sequences: Sequences,
        proximal: OldLogprobs,
        totals: Totals,
        rate: float,
        sums: StepSums,
        *,
        first: bool,
    ) -> OldLogprobs:
        """Take one optimizer step, and return the log-probs before it.

        totals: what the minibatch's means are taken over
        first: whether these sequences are computed for the first time
        """
        if self.loss.needs_survey:
            totals = replace(totals, weight=self._mean_importance(sequences, proximal))
        self.masters.clear()
        own_loss = 0.0
        logprobs: list[torch.Tensor] = []
        for sequence, old_E in zip(sequences, proximal, strict=True):
            loss, logp_E = self._accumulate(sequence, old_E, totals, sums, first=first)
            own_loss += loss
            logprobs.append(logp_E)
        loss, norm = self._summed([own_loss])[0], self._clip()
        if math.isfinite(norm) and math.isfinite(loss):
            self._update(rate)
            sums.applied += 1
        sums.losses.append(loss)
        sums.norms.append(norm)
        return logprobs

    @torch.no_grad()
    def _mean_importance(self, sequences: Sequences, proximal: OldLogprobs) -> float:
        """Return the minibatch's mean importance weight."""
        total, count = 0.0, 0.0
        for sequence, old_E in zip(sequences, proximal, strict=True):
            surveyed = self.loss.survey(gather.tokens(sequence, self.compute(sequence), old_E))
            total += surveyed[0]
            count += surveyed[1]
        total, count = self._summed([total, count])
        return total / max(1.0, count) or 1.0

    # -- overridden by a trainer of several ranks (distributed/trainer.py) --

    def _make_masters(self, model: PreTrainedModel, dtype: torch.dtype) -> Masters:
        """Return the weights that are trained."""
        return Masters(model, dtype)

    def compute(self, sequence: PackedSequence) -> Pass:
        """Run one forward pass of the policy. Every such pass goes through here."""
        self.on_pass()
        return forward(self.model, sequence, self.loss.softening)

    def _summed(self, own: Sequence[float]) -> Sequence[float]:
        """Return sums over the batch from sums over this process's sequences."""
        return own

    def _totals(self, sequences: Sequences) -> Totals:
        return totals_of(sequences)

    def _over_ranks(self, sums: StepSums) -> StepSums:
        return sums

    def _norm(self, gradients: list[torch.Tensor]) -> float:
        return float(torch.nn.utils.get_total_norm(gradients))

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    # -- the parts of a step --

    def _step_head(self, applied: bool) -> Mapping[str, float]:
        """Take the value head's step and return its numbers.

        A batch that moves no weight of the model moves none of the head: the policy is the same.
        """
        if self.head is None or not applied:
            if self.head is not None:
                self.head.drop_batch()
            return {}
        return self.head.step()

    def _accumulate(
        self,
        sequence: PackedSequence,
        proximal_E: torch.Tensor | None,
        totals: Totals,
        sums: StepSums,
        *,
        first: bool,
    ) -> tuple[float, torch.Tensor]:
        """Add a sequence's gradients; return its loss and the log-probs of its predictions."""
        result = self.compute(sequence)
        if self.head is not None and first:
            self.head.observe(result.state_U_D, sequence.head_observations)
        tokens = gather.tokens(sequence, result, proximal_E, self._reference(sequence))
        loss, measures = self.loss.compute(tokens, totals)
        self._backward(loss)
        sums.tally.add(measures)
        if first:
            sums.add_tokens(tokens)
        return float(loss.detach()), result.logp_E.detach()

    def subtract_kl(self, tree: ScoredTree) -> ScoredTree:
        """Return the tree with the rewards that advantages are estimated from.

        They are its own, minus a KL penalty where the loss takes one from rewards.
        """
        kl = self.loss.reward_kl
        if kl is None or self.reference is None:
            return tree
        return reference.penalised(tree, self.reference, kl, self.budget)

    @torch.no_grad()
    def _reference(self, sequence: PackedSequence) -> torch.Tensor | None:
        """Return the reference policy's log-probs, or None where the loss reads none."""
        unread = not self.loss.needs_reference or self.loss.reward_kl is not None
        if self.reference is None or unread:
            return None
        return forward(self.reference, sequence).logp_E

    def _clip(self) -> float:
        """Clip the gradients; return their norm before that."""
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

    # -- measurements and state --

    def drift(self, sequences: Sequences) -> dict[str, float]:
        """Measure `start_kl` on a probe's sequences, and `whole_rate`.

        `whole_rate` is the learning rate at which one step of Adam would move the weights by as
        much as they are, each trained number by the rate.
        """
        kl = drift.measured(sequences, self.compute)
        numbers = {} if kl is None else {"start_kl": kl}
        squares, moved = self._summed(self._sizes())
        return numbers | {"whole_rate": math.sqrt(squares / moved)}

    def _sizes(self) -> Sequence[float]:
        """Return the squares of the trained weights, and of their movement at a rate of 1."""
        weights = self.masters.weights
        if self.masters.adapted:
            named = dict(zip(self.masters.names, weights, strict=True))
            return lora.squared_norms(self.model, named)
        norms = [float(torch.linalg.vector_norm(weight.detach())) for weight in weights]
        return sum(norm**2 for norm in norms), float(sum(weight.numel() for weight in weights))

    def published(self) -> dict[str, torch.Tensor]:
        """Return all tensors of a published policy, in the precision of the computation."""
        return self.masters.computed() | (self.head.published() if self.head is not None else {})

    def moments(self) -> dict[str, torch.Tensor]:
        """Return Adam's state by parameter (empty before the first step), and the head's."""
        moments = adam_state.read(self.adam, self.masters.names, self.masters.weights)
        return moments | (self.head.state() if self.head is not None else {})

    def restore_moments(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Restore Adam's and the head's state from a checkpoint.

        With the checkpoint's weights loaded, training goes on bit for bit.
        """
        if self.head is not None:
            self.head.restore(moments)
        adam_state.restore(self.adam, self.masters.names, self.masters.weights, moments)


def _split(sequences: Sequences, sizes: Sequence[int]) -> list[Sequences]:
    """Return the sequences of each minibatch."""
    ends = list(accumulate(sizes or [len(sequences)]))
    return [sequences[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def settle(threads: int | None, device: torch.device | None = None) -> None:
    """Set threads, determinism and memory use of this process; once, before the first step.

    Deterministic runs train on the CPU; elsewhere determinism would cost up to a third of a pass.
    """
    if threads:
        torch.set_num_threads(threads)
    on_cpu = device is None or device.type == "cpu"
    torch.use_deterministic_algorithms(on_cpu, warn_only=True)
    # It costs a pass over every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch_environment.keep_memory()
