"""Tree attention on CUDA: FlexAttention with a block mask of nodes, subtrees and positions.

Compiled there. Without CUDA it runs eagerly, which is slow and holds all scores: tests compare its
mask that way.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from services.learner.attention.mask import TokenIntervals, TreeMask

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def mask_function(
    intervals: TokenIntervals, trunk: int, block_U: torch.Tensor, window: int | None
) -> MaskFunction:
    """Return FlexAttention's mask: true if the token at place q attends to the one at place k.

    It does if k is not behind it, lies in the trunk or in its own node or one above, and within the
    window along the path.
    """
    enter, leave, position = intervals

    def mask(
        batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        in_subtree = (enter[k] <= enter[q]) & (enter[q] <= leave[k])
        above = (block_U[q] == block_U[k]) & in_subtree
        visible = (q >= k) & ((k < trunk) | above)
        return visible if window is None else visible & (position[q] - position[k] < window)

    return mask


def block_mask(tree: TreeMask, window: int | None) -> BlockMask:
    """Return the block mask, made once per sequence and window."""

    def make(window: int | None) -> BlockMask:
        device, tokens = tree.intervals.enter.device, len(tree.intervals.enter)
        sizes = torch.tensor([tree.trunk, *tree.sizes], device=device)
        block_U = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
        function = mask_function(tree.intervals, tree.trunk, block_U, window)
        return create_block_mask(function, None, None, tokens, tokens, device=str(device))

    mask: BlockMask = tree.cached("block mask", window, make)
    return mask


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: TreeMask,
    *,
    scale: float,
    window: int | None,
    cap: float | None,
    sink_H: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend: [1, heads, tokens, width] each → [1, tokens, heads, width].

    Keys have as many heads as queries, or fewer. A sink only takes its share of the softmax, which
    follows from the log-sum-exp of the other scores.
    """

    def capped(score: torch.Tensor, *place: torch.Tensor) -> torch.Tensor:
        return cap * torch.tanh(score / cap)  # type: ignore[operator]

    function = _compiled() if query.is_cuda else flex_attention
    settings = {
        "score_mod": None if cap is None else capped,
        "block_mask": block_mask(tree, window),
        "scale": scale,
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    if sink_H is None:
        output = function(query, key, value, **settings)
    else:
        output, aux = function(query, key, value, **settings, return_aux=AuxRequest(lse=True))
        share = torch.sigmoid(aux.lse - sink_H.float()[None, :, None])
        output = (output * share[..., None]).to(output.dtype)
    return output.transpose(1, 2).contiguous()  # type: ignore[no-any-return]
