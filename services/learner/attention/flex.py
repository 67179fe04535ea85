"""Tree attention on CUDA: FlexAttention with a block mask that is made of each token's node, subtree and position.

Compiled there. Without CUDA it runs eagerly, which is slow and holds all scores: tests compare its mask so.
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

Sees = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def sees(facts: TokenIntervals, trunk: int, block_N: torch.Tensor, window: int | None) -> Sees:
    """Whether the token at place q sees the one at k, for FlexAttention: what all blocks share, or its own node's or one
    above, not behind it; and within the window along the path."""
    enter, leave, position = facts

    def mask(
        batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        above = (block_N[q] == block_N[k]) & (enter[k] <= enter[q]) & (enter[q] <= leave[k])
        found = (q >= k) & ((k < trunk) | above)
        return found if window is None else found & (position[q] - position[k] < window)

    return mask


def block_mask(tree: TreeMask, window: int | None) -> BlockMask:
    """Made once a row and window."""

    def make(window: int | None) -> BlockMask:
        device, tokens = tree.facts.enter.device, len(tree.facts.enter)
        sizes = torch.tensor([tree.trunk, *tree.sizes], device=device)
        block_N = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
        seen = sees(tree.facts, tree.trunk, block_N, window)
        return create_block_mask(seen, None, None, tokens, tokens, device=str(device))

    made: BlockMask = tree.once("block mask", window, make)
    return made


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: TreeMask,
    scale: float,
    window: int | None,
    cap: float | None,
    sink_H: torch.Tensor | None = None,
) -> torch.Tensor:
    """[1, heads, tokens, width] each, keys with fewer heads or as many → [1, tokens, heads, width]. A sink only takes its
    share of the softmax, which the log-sum-exp of the other scores tells."""

    def capped(score: torch.Tensor, *place: torch.Tensor) -> torch.Tensor:
        return cap * torch.tanh(score / cap)  # type: ignore[operator]

    function = _compiled() if query.is_cuda else flex_attention
    settings = {
        "score_mod": None if cap is None else capped,
        "block_mask": block_mask(tree, window),
        "scale": scale,
    }
    grouped = query.shape[1] != key.shape[1]
    if sink_H is None:
        seen = function(query, key, value, **settings, enable_gqa=grouped)
    else:
        seen, aux = function(
            query, key, value, **settings, enable_gqa=grouped, return_aux=AuxRequest(lse=True)
        )
        seen = (seen * torch.sigmoid(aux.lse - sink_H.float()[None, :, None])[..., None]).to(
            seen.dtype
        )
    return seen.transpose(1, 2).contiguous()  # type: ignore[no-any-return]
