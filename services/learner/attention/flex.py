"""Tree attention on CUDA: FlexAttention with a block mask of places and positions.

Compiled there. Without CUDA it runs eagerly, which is slow and holds all scores: tests compare its
mask that way.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    flex_attention,
)

from services.learner.attention.mask import TreeMask
from services.learner.packing.unroll import Bools, Ints

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
ScoreFunction = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor
]

# Variants that are compiled, of dtypes, settings of layers, rows of one block or more, and with
# gradients or without. Behind the limit PyTorch would run eagerly and hold all scores.
_VARIANTS = 64
LEAST_WIDTH = 16  # of a head that it compiles
BLOCK = 128  # tokens


def mask_function(
    end_U: torch.Tensor, position_U: torch.Tensor, window: int | None
) -> MaskFunction:
    """Return FlexAttention's mask: true if the token at place q attends to the one at place k.

    It does if q is not before k, lies before the end of k's subtree, and within the window along
    the path.
    """
    if window is None:
        return lambda batch, head, q, k: (k <= q) & (q < end_U[k])
    before_U = position_U - window

    def within(
        batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return (k <= q) & (q < end_U[k]) & (position_U[k] > before_U[q])

    return within


def block_mask(tree: TreeMask, window: int | None) -> BlockMask:
    """Return the block mask, made once per sequence and window.

    It is made on the host, from the bounds of blocks: never from all pairs of tokens.
    """

    def make(window: int | None) -> BlockMask:
        device, end_U, position_U = tree.intervals.position.device, tree.end_U, tree.position_U
        some, full = visible_blocks(end_U, position_U, window)
        function = mask_function(
            torch.from_numpy(end_U).to(device), tree.intervals.position, window
        )
        mask = BlockMask.from_kv_blocks(
            *_ordered(some & ~full),
            *_ordered(full),
            BLOCK_SIZE=BLOCK,
            mask_mod=function,
            seq_lengths=(len(end_U), len(end_U)),
        )
        return mask.to(device)

    mask: BlockMask = tree.cached("block mask", window, make)
    return mask


def visible_blocks(end_U: Ints, position_U: Ints, window: int | None) -> tuple[Bools, Bools]:
    """Return [query blocks, key blocks] twice: the blocks to attend to, and those without a mask.

    A block of keys is visible if the subtree of any reaches the queries, and needs no mask if that
    of each reaches behind them. With a window some may be attended to of which the mask hides all.
    """
    tokens = len(end_U)
    first_B = np.arange(0, tokens, BLOCK)
    last_B = np.minimum(first_B + BLOCK, tokens) - 1

    def bounds(values_U: Ints) -> tuple[Ints, Ints]:
        return np.minimum.reduceat(values_U, first_B), np.maximum.reduceat(values_U, first_B)

    least_end_B, most_end_B = bounds(end_U)
    behind = last_B[None] <= first_B[:, None]
    some = (behind & (most_end_B[None] > first_B[:, None])) | np.eye(len(first_B), dtype=np.bool_)
    whole_B = last_B - first_B == BLOCK - 1
    full = behind & (least_end_B[None] > last_B[:, None]) & whole_B[:, None]
    if window is not None:
        least_B, most_B = bounds(position_U)
        some &= most_B[None] > least_B[:, None] - window
        full &= least_B[None] > most_B[:, None] - window
    return some, full


def _ordered(blocks: Bools) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of blocks of each row, and their indices before those of all others."""
    index = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    counts = blocks.sum(1, dtype=np.int32)
    return torch.from_numpy(counts)[None, None], torch.from_numpy(index)[None, None]


@cache
def _compiled() -> Any:
    config = torch._dynamo.config
    config.recompile_limit = max(_VARIANTS, config.recompile_limit)
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

    function = _compiled() if query.is_cuda else flex_attention
    settings = {
        "score_mod": None if cap is None else _capped(cap, query),
        "block_mask": block_mask(tree, window),
        "scale": scale,
        "enable_gqa": query.shape[1] != key.shape[1],
        # The kernel for few queries, which it would take for short rows, is not made for some.
        "kernel_options": {"BACKEND": "TRITON"},
    }
    if sink_H is None:
        output = function(query, key, value, **settings)
    else:
        output, aux = function(query, key, value, **settings, return_aux=AuxRequest(lse=True))
        share = torch.sigmoid(aux.lse - sink_H.float()[None, :, None])
        output = (output * share[..., None]).to(output.dtype)
    return output.transpose(1, 2).contiguous()  # type: ignore[no-any-return]


def _capped(cap: float, query: torch.Tensor) -> ScoreFunction:
    """Return FlexAttention's function of scores. It compiles a cap in a tensor, not a number."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    cap_H = torch.full((query.shape[1],), cap, dtype=dtype, device=query.device)

    def capped(
        score: torch.Tensor,
        batch: torch.Tensor,
        head: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
    ) -> torch.Tensor:
        return cap_H[head] * torch.tanh(score / cap_H[head])

    return capped
