"""AdamW over master weights, and its state in checkpoints: `step.<name>`, `exp_avg.<name>`, …"""

from collections.abc import Mapping, Sequence

import torch

from banyan.recipe import Optimise

KINDS = ("step", "exp_avg", "exp_avg_sq")


def adam_of(weights: Sequence[torch.Tensor], optimise: Optimise) -> torch.optim.AdamW:
    """Return AdamW for the weights; only matrices decay, vectors (norms, biases) do not."""
    matrices = [weight for weight in weights if weight.dim() > 1]
    vectors = [weight for weight in weights if weight.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": optimise.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=optimise.learning_rate,
        betas=optimise.betas,
        eps=optimise.epsilon,
        fused=True,
    )


def read(
    adam: torch.optim.AdamW, names: Sequence[str], weights: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return Adam's state by kind and parameter; empty before the first step."""
    return {
        f"{kind}.{name}": adam.state[weight][kind]
        for name, weight in zip(names, weights, strict=True)
        if weight in adam.state
        for kind in KINDS
    }


def restore(
    adam: torch.optim.AdamW,
    names: Sequence[str],
    weights: Sequence[torch.Tensor],
    moments: Mapping[str, torch.Tensor],
) -> None:
    """Replace Adam's state by a copy of what a checkpoint holds of it."""
    adam.state.clear()
    for name, weight in zip(names, weights, strict=True):
        if f"step.{name}" in moments:
            adam.state[weight] = {
                kind: moments[f"{kind}.{name}"].to(weight.device, copy=True) for kind in KINDS
            }
