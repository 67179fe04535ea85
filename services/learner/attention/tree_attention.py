"""Tree attention for Hugging Face models: a token sees its ancestors and itself only. Registered as `banyan_tree`.

Linear layers run over all tokens of a row without padding; only attention knows the tree, which comes as `tree=`. Of the
ways to compute it the row's cost model takes the cheapest (ADR 029). What all blocks of a row share is computed once.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from banyan.errors import NotReady
from services.chassis.model_checks import attention_keywords
from services.learner.attention import flex, node_attention
from services.learner.attention.cost_model import Way
from services.learner.attention.mask import TreeMask

NAME = "banyan_tree"
_READER = "tree attention"


class Heads(NamedTuple):
    """Each [1, heads, tokens, width]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """How a layer computes its attention scores: a factor, a window along the path, a soft cap, and sinks.

    A soft cap c makes c · tanh(score / c) of a score (Gemma 2, arXiv 2408.00118, section 2). A sink, one number a query
    head, is one more score that has no value (gpt-oss).
    """

    scale: float
    window: int | None
    cap: float | None
    sink_H: torch.Tensor | None = None

    @property
    def fusible(self) -> bool:
        """Whether the fused kernel computes its scores."""
        return self.cap is None and self.sink_H is None


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    tree: TreeMask | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention. Tensors are [1, heads, tokens, width], the output [1, tokens, heads, width].

    Raises NotReady for keywords that are not understood; the tree is the mask, so a model must not add one of its own.
    """
    if tree is None:
        kind = getattr(getattr(module, "config", None), "model_type", "unknown")
        layer = type(module).__name__
        raise NotReady(
            f"model type {kind!r}: {layer} does not hand `tree=` to its attention; this model cannot be packed yet"
        )
    attention_keywords.check(module, _READER, {"attention_mask": attention_mask, **more}, dropout)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(
        Heads(query, key, value), tree, Layer(scale, tree.window(sliding_window), softcap, s_aux)
    ), None


def attend(heads: Heads, tree: TreeMask, layer: Layer, way: Way | None = None) -> torch.Tensor:
    """Tree attention by the cheapest way, or by the one that is named. Heads of keys may be fewer than those of queries."""
    way = tree.way(layer.window, not layer.fusible) if way is None else way
    if way is Way.BLOCK_MASK:
        return flex.attend(*heads, tree, layer.scale, layer.window, layer.cap, layer.sink_H)
    full = Heads(heads.query, *(_repeated(x, heads.query.shape[1]) for x in heads[1:]))
    if way is Way.NODES:
        return node_attention.attend(*full, tree.products(), layer.scale)
    cut = [torch.split_with_sizes(x, [tree.trunk, x.shape[2] - tree.trunk], 2) for x in full]
    trunk, own = (Heads(*parts) for parts in zip(*cut, strict=True))
    seen = (_padded if way is Way.PADDED else _by_block)(own, trunk, tree, layer)
    if tree.trunk:
        seen = torch.cat([_masked(trunk, tree.of_trunk(layer.window), layer), seen], 2)
    return seen.transpose(1, 2).contiguous()


def _repeated(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """As many heads as queries have."""
    groups = heads // tensor.shape[1]
    return tensor.repeat_interleave(groups, 1) if groups > 1 else tensor


def _by_block(own: Heads, trunk: Heads, tree: TreeMask, layer: Layer) -> torch.Tensor:
    """A product per block."""
    cut = (torch.split_with_sizes(x, tree.sizes, 2) for x in own)
    seen = [
        _masked(Heads(q, torch.cat([trunk.key, k], 2), torch.cat([trunk.value, v], 2)), mask, layer)
        for q, k, v, mask in zip(*cut, tree.blocks(layer.window), strict=True)
    ]
    return torch.cat(seen, 2)


def _masked(heads: Heads, mask: torch.Tensor, layer: Layer) -> torch.Tensor:
    """The fused kernel, which knows neither caps nor sinks: then scores are held."""
    if not layer.fusible:
        return _held(heads, mask, layer)
    return F.scaled_dot_product_attention(
        *heads, attn_mask=mask.to(heads.query.dtype), scale=layer.scale
    )


def _held(heads: Heads, mask: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Scores and softmax in at least float32, as in the fused kernel."""
    wide = torch.promote_types(heads.query.dtype, torch.float32)
    scores = torch.matmul(heads.query.to(wide) * layer.scale, heads.key.to(wide).transpose(2, 3))
    if layer.cap is not None:
        scores = layer.cap * torch.tanh(scores / layer.cap)
    scores = scores + mask
    if layer.sink_H is not None:
        sink = layer.sink_H.to(wide).view(1, -1, 1, 1).expand(len(scores), -1, scores.shape[2], 1)
        return torch.matmul(
            torch.cat([scores, sink], -1).softmax(-1)[..., :-1].to(heads.value.dtype), heads.value
        )
    return torch.matmul(scores.softmax(-1).to(heads.value.dtype), heads.value)


def _padded(own: Heads, trunk: Heads, tree: TreeMask, layer: Layer) -> torch.Tensor:
    """All blocks at once, padded to the longest."""
    q, k, v = (_stacked(x, tree) for x in own)
    if tree.trunk:
        k, v = (
            torch.cat([above.expand(len(x), -1, -1, -1), x], 2)
            for above, x in ((trunk.key, k), (trunk.value, v))
        )
    seen = _held(Heads(q, k, v), tree.padded(layer.window), layer)
    return torch.cat([part[:, :n] for part, n in zip(seen, tree.sizes, strict=True)], 1)[None]


def _stacked(tensor: torch.Tensor, tree: TreeMask) -> torch.Tensor:
    """[1, heads, tokens, width] as [blocks, heads, longest, width]."""
    if min(tree.sizes) == tree.longest:
        heads, _, width = tensor.shape[1:]
        return tensor[0].view(heads, len(tree.sizes), tree.longest, width).transpose(0, 1)
    parts = torch.split_with_sizes(tensor[0], tree.sizes, 1)
    return torch.stack([F.pad(part, (0, 0, 0, tree.longest - part.shape[1])) for part in parts])


AttentionInterface.register(NAME, tree_attention)
