"""Attention by level: rows that share a trunk attend to its KV together, once, and each to its own block besides.

The parts of a softmax over keys in several blocks are put together by their log-sum-exps, so the result is that of one
softmax over all. A level is a piece of the prefix store: a trunk's KV lies there once, however many branches it has.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from threading import local

import torch

from services.rollout.engines.prefixes import Match


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """KV [layers, kv heads, tokens, dim] that rows first..last of a level's order attend to."""

    keys: torch.Tensor
    values: torch.Tensor
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The blocks at one depth of the rows' trunks. order_N: the rows that have one, block by block."""

    blocks: tuple[Block, ...]
    order_N: torch.Tensor


def levels(trunks: Sequence[Match | None], device: torch.device) -> list[Level]:
    """The levels of a batch whose row r has the trunk trunks[r], if it has one."""
    depth = max((len(trunk.parts) for trunk in trunks if trunk is not None), default=0)
    return [_level(trunks, d, device) for d in range(depth)]


def _level(trunks: Sequence[Match | None], depth: int, device: torch.device) -> Level:
    rows: dict[tuple[int, int], list[int]] = {}
    parts = {}
    for r, trunk in enumerate(trunks):
        if trunk is not None and depth < len(trunk.parts):
            piece, stop = trunk.parts[depth]
            rows.setdefault((id(piece), stop), []).append(r)
            parts[id(piece), stop] = piece.keys[:, :, : stop - piece.start], piece.values[:, :, : stop - piece.start]
    ends = list(accumulate(len(some) for some in rows.values()))
    blocks = [Block(*parts[name], end - len(some), end) for (name, some), end in zip(rows.items(), ends, strict=True)]
    order = [r for some in rows.values() for r in some]
    return Level(tuple(blocks), torch.tensor(order, device=device))


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float | None,
    over: Sequence[Level], layer: int,
) -> torch.Tensor:  # fmt: skip
    """query [B, kv heads, G, dim] over each row's own key, value [B, kv heads, T, dim] and its levels."""
    part, lse_B_H_G = _part(query, key, value, mask, scale)
    out = part.float()
    for level in over:
        part, there = _blocks(query[level.order_N].transpose(0, 1), level, scale, layer)
        here = lse_B_H_G[level.order_N]
        both = torch.logaddexp(here, there)
        before = out[level.order_N].mul_((here - both).exp_()[..., None])
        out[level.order_N] = before.addcmul_(part, (there - both).exp_()[..., None])
        lse_B_H_G[level.order_N] = both
    return out.to(query.dtype)


def _blocks(query: torch.Tensor, level: Level, scale: float | None, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """query [kv heads, N, G, dim] → what its blocks give [N, kv heads, G, dim] and [N, kv heads, G], in float32."""
    heads, _, group, dim = query.shape
    parts, sums = [], []
    for block in level.blocks:
        rows = query[:, block.first : block.last].reshape(1, heads, -1, dim)
        part, lse = _part(rows, block.keys[layer, None], block.values[layer, None], None, scale)
        parts.append(part.view(heads, -1, group, part.shape[-1]))
        sums.append(lse.reshape(heads, -1, group))
    return torch.cat(parts, 1).transpose(0, 1).float(), torch.cat(sums, 1).transpose(0, 1)


def _part(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over one block, and the log-sum-exp of its scores in float32."""
    if _fused(query, key, value):
        mask = None if mask is None else _added(mask, query.dtype)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask, scale=scale)
        return out, lse
    scores = query.float() @ key.float().transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(value.dtype) @ value, lse


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether there is one kernel that gives both."""
    return query.device.type == "cpu" and key.shape[-1] == value.shape[-1]


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask as numbers to add; made once for all layers of a pass."""
    if _here.mask is None or _here.mask[0] is not mask:
        _here.mask = mask, torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
    return _here.mask[1]


class _Here(local):
    """What the forward pass of this thread attends to besides its rows' own blocks; and its mask, in both forms."""

    over: Sequence[Level] = ()
    mask: tuple[torch.Tensor, torch.Tensor] | None = None


_here = _Here()


def current() -> Sequence[Level]:
    """The levels of the pass that runs."""
    return _here.over


@contextmanager
def using(over: Sequence[Level]) -> Iterator[None]:
    """Makes a pass attend to levels."""
    _here.over = over
    try:
        yield
    finally:
        _here.over, _here.mask = (), None
