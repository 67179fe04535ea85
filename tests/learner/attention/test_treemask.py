"""Masks of a sequence take one byte per pair while they are made: no matrix of distances."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from services.learner.attention.mask import TreeMask
from tests.learner.attention.reference import sequence_of


class Wide(TorchDispatchMode):
    """A recorder of the elements of each tensor of whole numbers wider than a byte."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        integers = [
            t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and not t.is_floating_point()
        ]
        self.sizes += [
            t.untyped_storage().nbytes() // t.element_size()
            for t in integers
            if t.element_size() > 1
        ]
        return out


def test_the_recorder_sees_a_matrix_of_distances() -> None:
    at = torch.arange(50)
    with Wide() as wide:
        _ = at[:, None] - at[None, :]
    assert max(wide.sizes) == 2500


@pytest.mark.parametrize("window", [None, 5])
def test_no_mask_is_made_through_a_matrix_of_whole_numbers(forest: Any, window: int | None) -> None:
    sequence = sequence_of(forest, seed=0, trees=3, segments=9, shared=True)
    with Wide() as wide:
        mask = TreeMask(sequence, torch.float32, torch.device("cpu"))
        mask.of_trunk(window)
        mask.blocks(window)
        mask.padded(window)
    assert sequence.trunk > 1 and mask.longest > 1
    assert max(wide.sizes, default=0) <= len(sequence.token_U)
