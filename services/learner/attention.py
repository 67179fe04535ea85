"""Tree attention for Hugging Face models: each block of a row by itself, a token sees its ancestors and itself only.

Linear layers run over all tokens of a row without padding; only attention is cut into blocks, so that trees in one row do
not pay for each other. Registered with transformers as the attention `banyan_tree`; the row's mask comes as `tree=`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from banyan.errors import NotReady
from services.learner.packing import Row

NAME = "banyan_tree"


class TreeMask:
    """Who sees whom in a row. Masks are made once a row and kind of layer (full, or a sliding window along the path)."""

    def __init__(self, row: Row, dtype: torch.dtype, device: torch.device) -> None:
        self.sizes = [stop - start for start, stop in row.blocks]
        self._dtype = dtype
        names = (row.enter_N, row.leave_N, row.position_N)
        self._facts = [torch.split_with_sizes(torch.from_numpy(a).to(device), self.sizes) for a in names]
        self._masks: dict[int, list[torch.Tensor]] = {}

    def blocks(self, window: int | None) -> list[torch.Tensor]:
        """One additive mask [n, n] a block: 0 where row sees column, −inf elsewhere."""
        key = window or 0
        if key not in self._masks:
            self._masks[key] = [self._mask(*facts, window=key) for facts in zip(*self._facts, strict=True)]
        return self._masks[key]

    def _mask(self, enter: torch.Tensor, leave: torch.Tensor, position: torch.Tensor, *, window: int) -> torch.Tensor:
        sees = visible(enter, leave)
        if window:
            sees &= position[:, None] - position[None, :] < window
        mask = torch.zeros(sees.shape, dtype=self._dtype, device=enter.device)
        return mask.masked_fill_(~sees, float("-inf"))


def visible(enter: torch.Tensor, leave: torch.Tensor) -> torch.Tensor:
    """[n, n]: whether token i sees token j: j is not behind i, and j's node is i's or above it."""
    order = torch.arange(len(enter), device=enter.device)
    behind = order[None, :] <= order[:, None]
    return behind & (enter[None, :] <= enter[:, None]) & (enter[:, None] <= leave[None, :])


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    tree: TreeMask | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention, block by block. Tensors are [1, heads, tokens, width]."""
    if tree is None:
        raise NotReady(f"{type(module).__name__} does not hand `tree=` to its attention; this model cannot be packed yet")
    odd = [name for name in ("softcap", "s_aux", "position_bias") if more.get(name) is not None]
    if odd:
        raise NotReady(f"{type(module).__name__} attends with {odd[0]}, which tree attention does not do yet")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    cut = (torch.split_with_sizes(x, tree.sizes, 2) for x in (query, key, value))
    parts = zip(*cut, tree.blocks(sliding_window), strict=True)
    seen = [F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None], scale=scaling) for q, k, v, mask in parts]
    return torch.cat(seen, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, tree_attention)
