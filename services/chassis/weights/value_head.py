"""The learned head: the chance that a path will be right, read from the model's last-layer state (ARRoL; card 18).

q(h) = σ(W2·GELU(W1·LN(h))); what it says is p, q calibrated by a line through the points (raw, right) of equal-mass bins.
Who trains it and who asks it compute it here, in float32, from tensors that lie in the policy's weight file under
`weightfile.HEAD`: so it is published, versioned and digested with the policy.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from banyan.errors import InvalidInput
from services.chassis.weights.file import HEAD

_UP, _RAW, _HEARD = "up.weight", "raw_B", "heard"


class ValueHead(nn.Module):
    """The head of a model whose states have `size` numbers. heard: 1 once it has learned enough to be listened to."""

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
        """log q/(1 − q) of each state."""
        found: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm(state_N_H.float()))))[
            :, 0
        ]
        return found

    def forward(self, state_N_H: torch.Tensor) -> torch.Tensor:
        """p of each state."""
        return self.calibrated(self.logits(state_N_H).sigmoid())

    def calibrated(self, raw_N: torch.Tensor) -> torch.Tensor:
        """p where the head says q; beyond the outer points it is theirs."""
        right = torch.searchsorted(self.raw_B, raw_N, right=True).clamp(1, len(self.raw_B) - 1)
        left = right - 1
        gap = (self.raw_B[right] - self.raw_B[left]).clamp(min=torch.finfo(torch.float32).tiny)
        part = ((raw_N - self.raw_B[left]) / gap).clamp(0.0, 1.0)
        return torch.lerp(self.right_B[left], self.right_B[right], part)


def tensors(head: ValueHead) -> dict[str, torch.Tensor]:
    """Its tensors as they are named in a weight file."""
    return {HEAD + name: tensor.detach() for name, tensor in head.state_dict().items()}


def read(held: Mapping[str, torch.Tensor], like: torch.Tensor, source: Path) -> ValueHead | None:
    """The head among the tensors of a weight file, for a model with the output layer `like`; None where there is none, or
    none that may be heard yet. Raises InvalidInput where it is unusable."""
    found = {
        name.removeprefix(HEAD): tensor for name, tensor in held.items() if name.startswith(HEAD)
    }
    if not found:
        return None
    try:
        width, size = found[_UP].shape
        head = ValueHead(size, width, len(found[_RAW]))
        head.load_state_dict(found)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"the learned head in {source} is unusable: {' '.join(str(error).split())}"
        ) from None
    if size != like.shape[1]:
        raise InvalidInput(
            f"the learned head in {source} reads states of {size} numbers, the model's have {like.shape[1]}"
        )
    return head.to(like.device).requires_grad_(False) if bool(head.heard) else None
