"""A loss = surrogate × importance weight + regularisers, aggregated: the ordinary per-sequence loss of gathered values."""

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
from services.learner.packing.loss_targets import Taught

Measures = dict[str, tuple[float, float]]  # name → sum, and of how many it is


class Surrogate(Protocol):
    """A loss per token whose gradient is the policy's."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether its ratio was clipped."""
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
        """Whether log-probs of a reference policy are needed."""
        return self.kl is not None

    @property
    def reward_kl(self) -> Kl | None:
        """The penalty that is taken from rewards."""
        return self.kl if self.kl and self.kl.where == "reward" else None

    @property
    def surveys(self) -> bool:
        """Whether the whole batch must be seen before its first gradient."""
        return self.importance is not None and self.importance.normalise

    @property
    def softening(self) -> Softening | None:
        """Of the policy that one-token rollouts draw from."""
        found: Softening | None = getattr(self.surrogate, "softening", None)
        return found

    @cached_property
    def taught(self) -> Taught:
        """Which tokens it is taken on."""
        return Taught(frozenset(Origin[origin.upper()] for origin in self.forced))

    # -- its value --

    def survey(self, tokens: Tokens) -> tuple[float, float]:
        """A row's sum of importance weights, and how many they are."""
        assert self.importance is not None
        total, count = self.importance.sums(tokens)
        return float(total), float(count)

    def of(self, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Measures]:
        """What a row adds to the loss of the batch, and what it says of it."""
        mask, shaped = tokens.mask_P_T, self._shaped(tokens)
        own = tokens if shaped is None else replace(tokens, mask_P_T=mask & ~shaped)
        old = tokens.old(self.old or ("proximal" if self.importance else "sampled"))
        loss_P_T, clipped = self.surrogate.per_token(own, old)
        if shaped is not None:
            p = tokens.logp_P_T.exp()
            loss_P_T = torch.where(shaped, -tokens.advantage_P_T * p / (p + self.shaping), loss_P_T)
        count = float(mask.sum())
        measures: Measures = {"clip_fraction": (float(clipped.sum()), count)}
        loss_P_T = self._corrected(loss_P_T, own, totals, measures)
        loss_P_T = self._regularised(loss_P_T, tokens, old, measures)
        weight_P_T = self.aggregate.weights(mask, totals, loss_P_T.dtype, tokens.share_P_T)
        return (loss_P_T.masked_fill(~mask, 0.0) * weight_P_T).sum(), measures

    def _shaped(self, tokens: Tokens) -> torch.Tensor | None:
        origins = [
            int(Origin[origin.upper()]) for origin, how in self.forced.items() if how == "shaped"
        ]
        if not origins:
            return None
        return (
            torch.isin(tokens.origin_P_T, torch.tensor(origins, device=tokens.origin_P_T.device))
            & tokens.mask_P_T
        )

    def _corrected(
        self, loss: torch.Tensor, tokens: Tokens, totals: Totals, measures: Measures
    ) -> torch.Tensor:
        """Times the importance weights; nothing where rejected."""
        count = float(tokens.sampled_P_T.sum())
        if self.importance:
            weight, beyond = self.importance.weigh(tokens)
            weight = torch.where(tokens.sampled_P_T, weight / totals.weight, weight)
            measures["truncated_share"] = (float(beyond.sum()), count)
            measures["importance_mean"] = (float(weight[tokens.sampled_P_T].sum()), count)
            loss = loss * weight
        if self.reject:
            rejected = self.reject.rejected(tokens)
            measures["rejected_share"] = (float(rejected.sum()), count)
            loss = loss.masked_fill(rejected, 0.0)
        return loss

    def _regularised(
        self, loss: torch.Tensor, tokens: Tokens, old: torch.Tensor, measures: Measures
    ) -> torch.Tensor:
        """Plus the KL to the reference policy, minus the entropy bonus."""
        if self.kl and self.kl.where == "loss":
            assert tokens.reference_P_T is not None
            kl = estimate(self.kl.estimator, tokens.logp_P_T, tokens.reference_P_T)
            held = kl.detach()[tokens.mask_P_T]
            measures["reference_kl"] = (float(held.sum()), float(len(held)))
            loss = loss + self.kl.coef * (kl * tokens.ratio(old) if self.kl.by_ratio else kl)
        if self.entropy:
            loss = loss - self.entropy * tokens.entropy_P_T
        return loss
