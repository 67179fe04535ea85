"""A loss = surrogate × importance weight + regularisers, aggregated over gathered values."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch

from banyan.losses import parts as settings
from banyan.segment import Origin
from services.learner.losses.aggregate import Aggregate, Totals
from services.learner.losses.importance import Importance, Rejection
from services.learner.losses.kl import Kl, estimate
from services.learner.losses.tokens import Tokens
from services.learner.model.tempered import Softening
from services.learner.packing.loss_targets import LossTargets

Measures = Mapping[str, tuple[float, float]]  # name → sum, and number of summands


class Surrogate(Protocol):
    """A loss per token whose gradient is the policy's."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each token, and true where its ratio was clipped."""
        ...


class Composed(settings.Composed):
    """A loss with its parts."""

    surrogate: Surrogate
    aggregate: Aggregate
    importance: Importance | None
    reject: Rejection | None

    # -- what it needs --

    @property
    def needs_reference(self) -> bool:
        """True if log-probs of a reference policy are needed."""
        return self.kl is not None

    @property
    def reward_kl(self) -> Kl | None:
        """The penalty that is subtracted from rewards."""
        return self.kl if self.kl and self.kl.where == "reward" else None

    @property
    def needs_survey(self) -> bool:
        """True if the whole batch must be seen before its first gradient."""
        return self.importance is not None and self.importance.normalise

    @property
    def softening(self) -> Softening | None:
        """Settings of the policy that one-token rollouts draw from."""
        softening: Softening | None = getattr(self.surrogate, "softening", None)
        return softening

    @cached_property
    def targets(self) -> LossTargets:
        """Tokens that the loss is taken on."""
        forced = frozenset(Origin[origin.upper()] for origin in self.forced)
        return LossTargets(forced, silent=self.aggregate.count_silent)

    # -- its value --

    def survey(self, tokens: Tokens) -> tuple[float, float]:
        """Return a sequence's sum of importance weights, and their number."""
        assert self.importance is not None
        total, count = self.importance.sums(tokens)
        return float(total), float(count)

    def compute(self, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Measures]:
        """Return what a sequence adds to the loss of the batch, and its measures."""
        mask, shaped = tokens.mask_P_T, self._shaped(tokens)
        own = tokens if shaped is None else replace(tokens, mask_P_T=mask & ~shaped)
        old = tokens.old(self.old or ("proximal" if self.importance else "sampled"))
        loss_P_T, clipped = self.surrogate.per_token(own, old)
        if shaped is not None:
            p = tokens.logp_P_T.exp()
            shaped_loss = -tokens.advantage_P_T * p / (p + self.shaping)
            loss_P_T = torch.where(shaped, shaped_loss, loss_P_T)
        measures = {"clip_fraction": (float(clipped.sum()), float(mask.sum()))}
        loss_P_T = self._corrected(loss_P_T, own, totals, measures)
        loss_P_T = self._regularised(loss_P_T, tokens, old, measures)
        weight_P_T = self.aggregate.weights(mask, totals, loss_P_T.dtype, tokens.share_P_T)
        return (loss_P_T.masked_fill(~mask, 0.0) * weight_P_T).sum(), measures

    def _shaped(self, tokens: Tokens) -> torch.Tensor | None:
        """Return true for the forced tokens whose loss is shaped; None without such origins."""
        origins = [
            int(Origin[origin.upper()]) for origin, how in self.forced.items() if how == "shaped"
        ]
        if not origins:
            return None
        origin_P_T = tokens.origin_P_T
        shaped = torch.isin(origin_P_T, torch.tensor(origins, device=origin_P_T.device))
        return shaped & tokens.mask_P_T

    def _corrected(
        self,
        loss_P_T: torch.Tensor,
        tokens: Tokens,
        totals: Totals,
        measures: dict[str, tuple[float, float]],
    ) -> torch.Tensor:
        """Return the loss times the importance weights, 0 where rejected; add the measures."""
        sampled = tokens.sampled_P_T
        count = float(sampled.sum())
        if self.importance:
            weight, beyond = self.importance.weigh(tokens)
            weight = torch.where(sampled, weight / totals.weight, weight)
            measures["truncated_share"] = (float(beyond.sum()), count)
            measures["importance_mean"] = (float(weight[sampled].sum()), count)
            loss_P_T = loss_P_T * weight
        if self.reject:
            rejected = self.reject.rejected(tokens)
            measures["rejected_share"] = (float(rejected.sum()), count)
            loss_P_T = loss_P_T.masked_fill(rejected, 0.0)
        return loss_P_T

    def _regularised(
        self,
        loss_P_T: torch.Tensor,
        tokens: Tokens,
        old_P_T: torch.Tensor,
        measures: dict[str, tuple[float, float]],
    ) -> torch.Tensor:
        """Add the KL to the reference policy, and subtract the entropy bonus; add the measures."""
        if self.kl and self.kl.where == "loss":
            assert tokens.reference_P_T is not None
            kl = estimate(self.kl.estimator, tokens.logp_P_T, tokens.reference_P_T)
            real = kl.detach()[tokens.mask_P_T]
            measures["reference_kl"] = (float(real.sum()), float(len(real)))
            penalty = kl * tokens.ratio(old_P_T) if self.kl.by_ratio else kl
            loss_P_T = loss_P_T + self.kl.coef * penalty
        if self.entropy:
            loss_P_T = loss_P_T - self.entropy * tokens.entropy_P_T
        return loss_P_T
