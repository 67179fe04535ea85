"""The input of a loss: trained tokens of paths, a path per line, a token per column.

Values behind the end of a path mean nothing. There are three log-probs per token: `behaviour` at
sampling, `proximal` of the weights at the start of the batch, and `logp` now.
"""

from dataclasses import dataclass

import torch

LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Trained tokens of paths. logp has a gradient, and entropy if the loss needs one.

    logp_P_T: log-prob by the weights in training.
    proximal_P_T: log-prob by the weights at the start of the batch.
    behaviour_P_T: log-prob at sampling, of the tempered distribution.
    drawn_P_T: log-prob in the distribution drawn from, which truncation (top-k, top-p) changes.
    foreign_P_T: true if other weights than those at the start of the batch sampled the token.
    advantage_P_T: advantage.
    mask_P_T: true where the path has a token.
    share_P_T: 1 / trained paths of the tree that hold the token.
    origin_P_T: origin of a forced token (banyan.segment.Origin); 0 for the policy's own samples.
    entropy_P_T: entropy of the distribution at the token.
    reference_P_T: log-prob by the reference policy.
    soft_P_T: log π' of the token, for one-token rollouts (services/learner/model/tempered.py).
    soft_mean_P_T: mean log-prob of a draw from π'; it has a gradient too.
    """

    logp_P_T: torch.Tensor
    proximal_P_T: torch.Tensor
    behaviour_P_T: torch.Tensor
    drawn_P_T: torch.Tensor
    foreign_P_T: torch.Tensor
    advantage_P_T: torch.Tensor
    mask_P_T: torch.Tensor
    share_P_T: torch.Tensor
    origin_P_T: torch.Tensor
    entropy_P_T: torch.Tensor
    reference_P_T: torch.Tensor | None = None
    soft_P_T: torch.Tensor | None = None
    soft_mean_P_T: torch.Tensor | None = None

    def old(self, source: str) -> torch.Tensor:
        """Return the log-probs that ratios are taken to: proximal, behaviour or sampled.

        `sampled` is behaviour for foreign tokens, and proximal for the rest.
        """
        if source == "proximal":
            return self.proximal_P_T
        if source == "behaviour":
            return self.behaviour_P_T
        return torch.where(self.foreign_P_T, self.behaviour_P_T, self.proximal_P_T)

    @property
    def sampled_P_T(self) -> torch.Tensor:
        """True for tokens that the policy sampled.

        Only these tell how far sampling and training are apart.
        """
        return self.mask_P_T & (self.origin_P_T == 0)

    def drift(self) -> torch.Tensor:
        """Return log(proximal / behaviour) of each sampled token, 0 elsewhere.

        It tells how far training is from sampling. Truncation is no part of it: the weights that
        sampled and those in training may be the same and yet draw otherwise.
        """
        return self._since(self.behaviour_P_T)

    def correction(self) -> torch.Tensor:
        """Return log(proximal / drawn) of each sampled token, 0 elsewhere.

        Importance weights and rejection are computed from it.
        """
        return self._since(self.drawn_P_T)

    def _since(self, sampling_P_T: torch.Tensor) -> torch.Tensor:
        difference = (self.proximal_P_T - sampling_P_T).masked_fill(~self.sampled_P_T, 0.0)
        return difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)

    def ratio(self, old_P_T: torch.Tensor) -> torch.Tensor:
        """Return π / π_old of each token, 1 behind the end of a path."""
        difference = (self.logp_P_T - old_P_T).masked_fill(~self.mask_P_T, 0.0)
        return difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
