"""The refusal of weights with NaN or infinities: nothing computed with them is of use."""

from collections.abc import Iterable
from pathlib import Path

import torch

from banyan.errors import InvalidInput


def refuse(tensors: Iterable[tuple[str, torch.Tensor]], source: Path) -> None:
    """Raise InvalidInput that names the first tensor with a number that is not finite.

    Each tensor is read once, none is copied. source: origin of the weights, for the message.
    """
    for name, tensor in tensors:
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        least, most = torch.aminmax(tensor.detach())  # both are NaN if any number is
        if not (torch.isfinite(least) and torch.isfinite(most)):
            count = int((~torch.isfinite(tensor)).sum())
            raise InvalidInput(
                f"tensor {name} of {source} holds {count:,} of {tensor.numel():,} numbers that are"
                " not finite; nothing can be sampled from or trained on these weights: get a whole"
                " copy of the model"
            )
