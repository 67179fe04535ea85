"""Attention by level: rows that share a trunk attend to its KV together, once, and each to its own block besides.

The parts of a softmax over keys in several blocks are put together by their log-sum-exps, so the result is that of one
softmax over all. A level is a piece of the prefix store: a trunk's KV lies there once, however many branches it has.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from threading import local

import torch

from services.rollout.engines.torch_engine.attention_scores import Scores, held
from services.rollout.engines.torch_engine.kv.prefix_cache import Match
from services.rollout.engines.torch_engine.paged_attention import Own


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
            parts[id(piece), stop] = (
                piece.keys[:, :, : stop - piece.start],
                piece.values[:, :, : stop - piece.start],
            )
    ends = list(accumulate(len(some) for some in rows.values()))
    blocks = [
        Block(*parts[name], end - len(some), end)
        for (name, some), end in zip(rows.items(), ends, strict=True)
    ]
    order = [r for some in rows.values() for r in some]
    return Level(tuple(blocks), torch.tensor(order, device=device))


def attend(
    query: torch.Tensor, own: Iterable[Own], scores: Scores, over: Sequence[Level], layer: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [B, kv heads, G, dim] over what is each row's own, in order of rows, and its levels; and the log-sum-exp
    [B, kv heads, G] of all their scores."""
    parts = [_part(query[one.rows], one.keys, one.values, one.mask, scores) for one in own]
    part, lse_B_H_G = (
        parts[0] if len(parts) == 1 else (torch.cat(some) for some in zip(*parts, strict=True))
    )
    out = part.float()
    for level in over:
        part, there = _blocks(query[level.order_N].transpose(0, 1), level, scores, layer)
        here = lse_B_H_G[level.order_N]
        both = torch.logaddexp(here, there)
        before = out[level.order_N].mul_((here - both).exp_()[..., None])
        out[level.order_N] = before.addcmul_(part, (there - both).exp_()[..., None])
        lse_B_H_G[level.order_N] = both
    return out.to(query.dtype), lse_B_H_G


def _blocks(
    query: torch.Tensor, level: Level, scores: Scores, layer: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [kv heads, N, G, dim] → what its blocks give [N, kv heads, G, dim] and [N, kv heads, G], in float32."""
    heads, _, group, dim = query.shape
    parts, sums = [], []
    for block in level.blocks:
        rows = query[:, block.first : block.last].reshape(1, heads, -1, dim)
        part, lse = _part(rows, block.keys[layer, None], block.values[layer, None], None, scores)
        parts.append(part.view(heads, -1, group, part.shape[-1]))
        sums.append(lse.reshape(heads, -1, group))
    return torch.cat(parts, 1).transpose(0, 1).float(), torch.cat(sums, 1).transpose(0, 1)


def _part(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over one block, and the log-sum-exp of its scores in float32."""
    if scores.cap is not None or not _fused(query, key, value):
        return held(query, key, value, mask, scores)
    mask = None if mask is None else _added(mask, query.dtype)
    given = {"attn_mask": mask, "scale": scores.scale}
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, **given
    )
    return out, lse


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether there is one kernel that gives both."""
    return (
        query.device.type == "cpu"
        and key.shape[-1] == value.shape[-1]
        and query.shape[1] == key.shape[1]
    )


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask as numbers to add; made once for all layers of a pass that attends to levels."""
    name = mask.data_ptr(), tuple(mask.shape)
    if (known := _here.masks.get(name)) is not None:
        return known[1]
    added = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
    if _here.over:
        _here.masks[name] = (
            mask,
            added,
        )  # with the mask itself, so that its place in memory stays its own
    return added


class _Here(local):
    """What the forward pass of this thread attends to besides its rows' own blocks; and its masks, in both forms."""

    def __init__(self) -> None:
        self.over: Sequence[Level] = ()
        self.masks: dict[tuple[int, tuple[int, ...]], tuple[torch.Tensor, torch.Tensor]] = {}


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
        _here.over = ()
        _here.masks.clear()
