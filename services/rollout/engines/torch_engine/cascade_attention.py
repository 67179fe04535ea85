"""Cascade attention: rows that share a trunk attend to its KV together, once, level by level.

Besides, each row attends to its own KV. The parts of a softmax over keys in several blocks are
merged by their log-sum-exps, so the result is that of one softmax over all. A level is a depth of
the prefix cache's blocks: a trunk's KV is stored once, however many branches it has.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local

import torch

from services.rollout.engines.torch_engine.attention_scores import Scores, unfused
from services.rollout.engines.torch_engine.kv.prefix_cache import KvBlock, Match
from services.rollout.engines.torch_engine.paged_attention import OwnKv

_ALIGNED = 8  # numbers that rows of keys and masks must be a multiple of, on CUDA


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """KV [layers, kv heads, tokens, dim] that rows first..last of a level's order attend to."""

    keys: torch.Tensor
    values: torch.Tensor
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The blocks at one depth of the rows' trunks. order_N: the rows that have one, by block."""

    blocks: tuple[Block, ...]
    order_N: torch.Tensor


def levels(trunks: Sequence[Match | None], device: torch.device) -> list[Level]:
    """Return the levels of a batch whose row r has the trunk trunks[r], if any."""
    depth = max((len(trunk.parts) for trunk in trunks if trunk is not None), default=0)
    return [_level(trunks, d, device) for d in range(depth)]


def _level(trunks: Sequence[Match | None], depth: int, device: torch.device) -> Level:
    rows: dict[tuple[int, int], list[int]] = {}
    parts: dict[tuple[int, int], tuple[KvBlock, int]] = {}
    for r, trunk in enumerate(trunks):
        if trunk is not None and depth < len(trunk.parts):
            kv_block, stop = trunk.parts[depth]
            rows.setdefault((id(kv_block), stop), []).append(r)
            parts[id(kv_block), stop] = kv_block, stop
    blocks: list[Block] = []
    order: list[int] = []
    for name, block_rows in rows.items():
        kv_block, stop = parts[name]
        tokens = stop - kv_block.start
        block = Block(
            keys=kv_block.keys[:, :, :tokens],
            values=kv_block.values[:, :, :tokens],
            first=len(order),
            last=len(order) + len(block_rows),
        )
        blocks.append(block)
        order += block_rows
    return Level(tuple(blocks), torch.tensor(order, device=device))


def attend(
    query: torch.Tensor,
    own: Iterable[OwnKv],
    scores: Scores,
    levels: Sequence[Level],
    layer: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention over each row's own KV and its levels, and the log-sum-exp of all scores.

    query [B, kv heads, G, dim] → [B, kv heads, G, dim], [B, kv heads, G]. own: in order of rows.
    """
    outputs, sums = [], []
    for kv in own:
        output, lse = _attend_block(query[kv.rows], kv.keys, kv.values, kv.mask, scores)
        outputs.append(output)
        sums.append(lse)
    merged = (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).float()
    lse_B_H_G = sums[0] if len(sums) == 1 else torch.cat(sums)
    for level in levels:
        order_N = level.order_N
        output, level_lse = _attend_level(query[order_N].transpose(0, 1), level, scores, layer)
        own_lse = lse_B_H_G[order_N]
        total_lse = torch.logaddexp(own_lse, level_lse)
        kept = merged[order_N].mul_((own_lse - total_lse).exp_()[..., None])
        merged[order_N] = kept.addcmul_(output, (level_lse - total_lse).exp_()[..., None])
        lse_B_H_G[order_N] = total_lse
    return merged.to(query.dtype), lse_B_H_G


def _attend_level(
    query: torch.Tensor, level: Level, scores: Scores, layer: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention over a level's blocks and its log-sum-exp, in float32.

    query [kv heads, N, G, dim] → [N, kv heads, G, dim], [N, kv heads, G].
    """
    heads, _, group, dim = query.shape
    outputs, sums = [], []
    for block in level.blocks:
        rows = query[:, block.first : block.last].reshape(1, heads, -1, dim)
        keys, values = block.keys[layer, None], block.values[layer, None]
        output, lse = _attend_block(rows, keys, values, None, scores)
        outputs.append(output.view(heads, -1, group, output.shape[-1]))
        sums.append(lse.reshape(heads, -1, group))
    return torch.cat(outputs, 1).transpose(0, 1).float(), torch.cat(sums, 1).transpose(0, 1)


def _attend_block(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention over one block, and the log-sum-exp of its scores in float32."""
    if scores.cap is not None or not (_fused(query, key, value) and _aligned(query, mask)):
        return unfused(query, key, value, mask, scores)
    bias = None if mask is None else _additive(mask, query.dtype)
    if query.device.type == "cpu":
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=bias, scale=scores.scale
        )
        return output, lse
    if bias is not None:
        bias = bias.expand(*query.shape[:3], -1)
    output, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, scale=scores.scale
    )
    return output, lse[:, :, : query.shape[2]]  # it is padded


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether one kernel computes both."""
    same_dim = key.shape[-1] == value.shape[-1]
    return query.device.type in ("cpu", "cuda") and same_dim and query.shape[1] == key.shape[1]


def _aligned(query: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether the kernel takes rows of these widths."""
    widths = [query.shape[-1]] if mask is None else [query.shape[-1], mask.shape[-1]]
    return query.device.type == "cpu" or all(width % _ALIGNED == 0 for width in widths)


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the mask as numbers to add; made once for all layers of a pass with levels."""
    name = mask.data_ptr(), tuple(mask.shape)
    if (known := _pass.masks.get(name)) is not None:
        return known[1]
    additive = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    additive.masked_fill_(~mask, -torch.inf)
    if _pass.levels:
        # The mask itself is stored too, so that its address is not reused.
        _pass.masks[name] = mask, additive
    return additive


class _Pass(local):
    """The levels of this thread's forward pass, and its masks in both forms."""

    def __init__(self) -> None:
        self.levels: Sequence[Level] = ()
        self.masks: dict[tuple[int, tuple[int, ...]], tuple[torch.Tensor, torch.Tensor]] = {}


_pass = _Pass()


def current() -> Sequence[Level]:
    """Return the levels of the current pass."""
    return _pass.levels


@contextmanager
def using(levels: Sequence[Level]) -> Iterator[None]:
    """Make the passes within attend to levels."""
    _pass.levels = levels
    try:
        yield
    finally:
        _pass.levels = ()
        _pass.masks.clear()
