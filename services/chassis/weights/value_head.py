"""The value head: the probability that a path will be right, from the last layer's state.

q(h) = σ(W2·GELU(W1·LN(h))). The output p is q calibrated by a line through the points (raw,
right) of equal-mass bins. The idea is ARRoL's (Prune as You Generate; github.com/Hsu1023/ARRoL),
of which only the abstract is public; the form of the head is our inference (ADR 017). Learner and
engines compute it here, in float32. Its tensors are in the policy's weight file under the prefix
`file.HEAD`, so it is published, versioned and digested with the policy.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from banyan.errors import InvalidInput
from services.chassis.weights.file import HEAD

_UP, _RAW, _HEARD = "up.weight", "raw_B", "heard"


class ValueHead(nn.Module):
    """The head of a model whose states have `size` numbers.

    raw_B, right_B: points of the calibration, by bin.
    heard: 1 once the head has learned enough to be used.
    """

    raw_B: torch.Tensor
    right_B: torch.Tensor
    heard: torch.Tensor

    def __init__(self, size: int, width: int, bins: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, width)
        self.down = nn.Linear(width, 1)
        self.register_buffer(_RAW, torch.linspace(0.0, 1.0, bins))
        self.register_buffer("right_B", torch.linspace(0.0, 1.0, bins))
        self.register_buffer(_HEARD, torch.zeros(()))

    def logits(self, state_N_H: torch.Tensor) -> torch.Tensor:
        """Return log q/(1 − q) of each state."""
        hidden_N_W = nn.functional.gelu(self.up(self.norm(state_N_H.float())))
        logits_N: torch.Tensor = self.down(hidden_N_W)[:, 0]
        return logits_N

    def forward(self, state_N_H: torch.Tensor) -> torch.Tensor:
        """Return p of each state."""
        return self.calibrated(self.logits(state_N_H).sigmoid())

    def calibrated(self, raw_N: torch.Tensor) -> torch.Tensor:
        """Return p for each q; beyond the outer points, p of the outer point."""
        right = torch.searchsorted(self.raw_B, raw_N, right=True).clamp(1, len(self.raw_B) - 1)
        left = right - 1
        gap = (self.raw_B[right] - self.raw_B[left]).clamp(min=torch.finfo(torch.float32).tiny)
        part = ((raw_N - self.raw_B[left]) / gap).clamp(0.0, 1.0)
        return torch.lerp(self.right_B[left], self.right_B[right], part)


def tensors(head: ValueHead) -> dict[str, torch.Tensor]:
    """Return the head's tensors under their names in a weight file."""
    return {HEAD + name: tensor.detach() for name, tensor in head.state_dict().items()}


def read(
    tensors: Mapping[str, torch.Tensor], output_layer: torch.Tensor, source: Path
) -> ValueHead | None:
    """Return the head among the tensors of a weight file; None without one that may be used yet.

    Raise InvalidInput if it is unusable, or does not fit the model with this output layer.
    """
    state = {
        name.removeprefix(HEAD): tensor for name, tensor in tensors.items() if name.startswith(HEAD)
    }
    if not state:
        return None
    try:
        width, size = state[_UP].shape
        head = ValueHead(size, width, bins=len(state[_RAW]))
        head.load_state_dict(state)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise InvalidInput(f"the learned head in {source} is unusable: {cause}") from None
    if size != output_layer.shape[1]:
        raise InvalidInput(
            f"the learned head in {source} reads states of {size} numbers, the model's have"
            f" {output_layer.shape[1]}"
        )
    if not bool(head.heard):
        return None
    return head.to(output_layer.device).requires_grad_(False)
