"""Tree attention for Hugging Face models: each block of a row by itself, a token sees its ancestors and itself only.

Linear layers run over all tokens of a row without padding; only attention is cut into blocks, so that trees in one row do
not pay for each other. A trunk that all blocks share is computed once and seen by all of them. Registered with
transformers as the attention `banyan_tree`; the row's mask comes as `tree=`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from banyan.errors import NotReady
from services.learner.packing import Row

NAME = "banyan_tree"


# Up to this many tokens a block's scores are cheap to hold, and one batched product beats a kernel call per block.
DENSE_TOKENS = 512
PADDING_BOUND = 2.0  # padded scores may be at most so many times the exact ones


class TreeMask:
    """Who sees whom in a row. Masks are made once a row and kind of layer (full, or a sliding window along the path)."""

    def __init__(self, row: Row, dtype: torch.dtype, device: torch.device) -> None:
        self.trunk = row.trunk
        self.sizes = [stop - start for start, stop in row.blocks]
        self.longest = max(self.sizes, default=0)
        wide = self.trunk + self.longest
        padded, exact = len(self.sizes) * self.longest * wide, sum(n * (self.trunk + n) for n in self.sizes)
        self.dense = wide <= DENSE_TOKENS and padded <= PADDING_BOUND * exact
        self._dtype = torch.promote_types(dtype, torch.float32) if self.dense else dtype
        names = (row.enter_N, row.leave_N, row.position_N)
        self._facts = [torch.from_numpy(a).to(device) for a in names]
        self._made: dict[tuple[str, int], Any] = {}

    def _once(self, kind: str, window: int | None, make: Callable[[int], Any]) -> Any:
        key = (kind, window or 0)
        if key not in self._made:
            self._made[key] = make(window or 0)
        return self._made[key]

    def of_trunk(self, window: int | None) -> torch.Tensor:
        """Additive mask [trunk, trunk]: 0 where row sees column, −inf elsewhere."""
        position = self._facts[2][: self.trunk]
        order = torch.arange(self.trunk, device=position.device)
        mask: torch.Tensor = self._once(
            "trunk", window, lambda w: self._additive((order[None] <= order[:, None]) & _near(position, position, w))
        )
        return mask

    def blocks(self, window: int | None) -> list[torch.Tensor]:
        """One additive mask [n, trunk + n] a block."""
        masks: list[torch.Tensor] = self._once("blocks", window, self._blocks)
        return masks

    def padded(self, window: int | None) -> torch.Tensor:
        """The blocks as [blocks, 1, longest, trunk + longest]; padding sees one token, and nothing sees padding."""
        mask: torch.Tensor = self._once("padded", window, self._padded)
        return mask

    def _blocks(self, window: int) -> list[torch.Tensor]:
        cut = [torch.split_with_sizes(fact, [self.trunk, *self.sizes]) for fact in self._facts]
        above = cut[2][0]
        return [
            self._additive(torch.cat([_near(p, above, window), visible(e, v) & _near(p, p, window)], 1))
            for e, v, p in zip(*(parts[1:] for parts in cut), strict=True)
        ]

    def _padded(self, window: int) -> torch.Tensor:
        masks = self.blocks(window)
        whole = masks[0].new_full((len(masks), 1, self.longest, self.trunk + self.longest), float("-inf"))
        whole[:, :, :, 0] = 0.0
        for at, mask in enumerate(masks):
            whole[at, 0, : mask.shape[0], : mask.shape[1]] = mask
        return whole

    def _additive(self, sees: torch.Tensor) -> torch.Tensor:
        return torch.zeros(sees.shape, dtype=self._dtype, device=sees.device).masked_fill_(~sees, float("-inf"))


def _near(position: torch.Tensor, seen: torch.Tensor, window: int) -> torch.Tensor:
    """[n, m]: whether the second position lies within the window of the first; a window of 0 has no end."""
    distance = position[:, None] - seen[None, :]
    return distance < window if window else torch.ones_like(distance, dtype=torch.bool)


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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    cut = [torch.split_with_sizes(x, [tree.trunk, x.shape[2] - tree.trunk], 2) for x in (query, key, value)]
    trunk, own = (_Heads(*parts) for parts in zip(*cut, strict=True))
    seen = (_dense if tree.dense else _by_block)(own, trunk, tree, scale, sliding_window)
    if tree.trunk:
        mask = tree.of_trunk(sliding_window).to(query.dtype)
        seen = torch.cat([F.scaled_dot_product_attention(*trunk, attn_mask=mask[None, None], scale=scale), seen], 2)
    return seen.transpose(1, 2).contiguous(), None


class _Heads(NamedTuple):
    """Each [1, heads, tokens, width]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def _by_block(own: _Heads, trunk: _Heads, tree: TreeMask, scale: float, window: int | None) -> torch.Tensor:
    """A kernel call per block: memory linear in its tokens."""
    cut = (torch.split_with_sizes(x, tree.sizes, 2) for x in own)
    seen = [
        F.scaled_dot_product_attention(
            q, torch.cat([trunk.key, k], 2), torch.cat([trunk.value, v], 2), attn_mask=mask[None, None], scale=scale
        )
        for q, k, v, mask in zip(*cut, tree.blocks(window), strict=True)
    ]
    return torch.cat(seen, 2)


def _dense(own: _Heads, trunk: _Heads, tree: TreeMask, scale: float, window: int | None) -> torch.Tensor:
    """All blocks at once, padded to the longest. Scores and softmax in at least float32, as the fused kernel does."""
    wide = torch.promote_types(own.query.dtype, torch.float32)
    q, k, v = (_stacked(x, tree) for x in own)
    if tree.trunk:
        k, v = (torch.cat([above.expand(len(x), -1, -1, -1), x], 2) for above, x in ((trunk.key, k), (trunk.value, v)))
    scores = torch.matmul(q.to(wide) * scale, k.to(wide).transpose(2, 3)) + tree.padded(window)
    seen = torch.matmul(scores.softmax(-1).to(v.dtype), v)
    return torch.cat([part[:, :n] for part, n in zip(seen, tree.sizes, strict=True)], 1)[None]


def _stacked(tensor: torch.Tensor, tree: TreeMask) -> torch.Tensor:
    """[1, heads, tokens, width] as [blocks, heads, longest, width]."""
    if min(tree.sizes) == tree.longest:
        heads, _, width = tensor.shape[1:]
        return tensor[0].view(heads, len(tree.sizes), tree.longest, width).transpose(0, 1)
    parts = torch.split_with_sizes(tensor[0], tree.sizes, 1)
    return torch.stack([F.pad(part, (0, 0, 0, tree.longest - part.shape[1])) for part in parts])


AttentionInterface.register(NAME, tree_attention)
