"""What a loss sees: the trained tokens of paths, a path a row, a token a column. Behind a path's end nothing means anything.

Three log-probs a token: `behaviour` when it was sampled, `proximal` of the weights at the start of the batch, `logp` now.
"""

from dataclasses import dataclass

import torch

LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Tokens:
    """logp has a gradient, and entropy where a loss wants one; nothing else has.

    drawn: log-prob in the distribution drawn from, which truncation may have made another than behaviour's. foreign: sampled
    by other weights than those at the start of the batch. share: 1 / trained paths of the tree that hold the token. origin:
    who forced it (banyan.segment.Origin), 0 for the policy's own samples. reference: log-prob of the reference policy.
    soft, soft_mean: of what one-token rollouts draw from (services.learner.model.tempered); soft_mean has a gradient too.
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
        """The log-probs that ratios are taken to. sampled: behaviour for foreign tokens, proximal for the rest."""
        if source == "proximal":
            return self.proximal_P_T
        if source == "behaviour":
            return self.behaviour_P_T
        return torch.where(self.foreign_P_T, self.behaviour_P_T, self.proximal_P_T)

    @property
    def sampled_P_T(self) -> torch.Tensor:
        """Which tokens the policy sampled: only these say anything of how far sampling and training are apart."""
        return self.mask_P_T & (self.origin_P_T == 0)

    def drift(self) -> torch.Tensor:
        """Return log(proximal / behaviour) of each sampled token, 0 elsewhere: how far training is from sampling. Truncation
        is no part of it: the weights that sampled and those in training may be the same and yet draw otherwise."""
        return self._since(self.behaviour_P_T)

    def correction(self) -> torch.Tensor:
        """Return log(proximal / drawn) of each sampled token, 0 elsewhere: what importance weights and rejection go by."""
        return self._since(self.drawn_P_T)

    def _since(self, sampling_P_T: torch.Tensor) -> torch.Tensor:
        difference = (self.proximal_P_T - sampling_P_T).masked_fill(~self.sampled_P_T, 0.0)
        return difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)

    def ratio(self, old_P_T: torch.Tensor) -> torch.Tensor:
        """π / π_old of each token, 1 behind a path's end."""
        difference = (self.logp_P_T - old_P_T).masked_fill(~self.mask_P_T, 0.0)
        return difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
