"""Tree attention for Hugging Face models: a token attends to its ancestors and itself only.

Registered as `banyan_tree`. Linear layers run over all tokens of a sequence without padding; only
attention knows the tree, which comes as `tree=`. The sequence's cost model chooses the cheapest
method (ADR 029). Attention within the trunk that all blocks share is computed once.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from banyan.errors import NotReady
from services.chassis.model_checks import attention_keywords
from services.learner.attention import flex, node_attention
from services.learner.attention.cost_model import AttentionMethod
from services.learner.attention.mask import TreeMask

NAME = "banyan_tree"
_READER = "tree attention"


class Heads(NamedTuple):
    """Queries, keys and values, [1, heads, tokens, width] each."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Settings of a layer's attention scores.

    scale: factor of the scores.
    window: most positions back along the path; None for all.
    cap: soft cap c, which turns a score into c · tanh(score / c) (Gemma 2, arXiv 2408.00118,
        section 2); None for none.
    sink_H: one more score per query head that has no value (gpt-oss); None for none.
    """

    scale: float
    window: int | None
    cap: float | None
    sink_H: torch.Tensor | None = None

    @property
    def fusible(self) -> bool:
        """True if the fused kernel computes its scores."""
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
    """Compute scaled dot-product attention: [1, heads, tokens, width] → [1, tokens, heads, width].

    The tree is the mask, so a model must not add one of its own. Raise NotReady for keywords that
    are not understood.
    """
    if tree is None:
        kind = getattr(getattr(module, "config", None), "model_type", "unknown")
        raise NotReady(
            f"model type {kind!r}: {type(module).__name__} does not hand `tree=` to its attention; "
            "this model cannot be packed yet"
        )
    attention_keywords.check(module, _READER, {"attention_mask": attention_mask, **more}, dropout)
    layer = Layer(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=tree.window(sliding_window),
        cap=softcap,
        sink_H=s_aux,
    )
    return attend(Heads(query, key, value), tree, layer), None


def attend(
    heads: Heads, tree: TreeMask, layer: Layer, method: AttentionMethod | None = None
) -> torch.Tensor:
    """Attend by the cheapest method, or by the one that is named.

    Keys have as many heads as queries, or fewer.
    """
    if method is None:
        method = _method(heads, tree, layer)
    if method is AttentionMethod.BLOCK_MASK:
        return flex.attend(
            *heads,
            tree,
            scale=layer.scale,
            window=layer.window,
            cap=layer.cap,
            sink_H=layer.sink_H,
        )
    query_heads = heads.query.shape[1]
    key, value = _repeated(heads.key, query_heads), _repeated(heads.value, query_heads)
    full = Heads(heads.query, key, value)
    if method is AttentionMethod.NODES:
        return node_attention.attend(*full, tree.prepared_matmuls(), layer.scale)
    sizes = [tree.trunk, full.query.shape[2] - tree.trunk]
    cut = [torch.split_with_sizes(x, sizes, 2) for x in full]
    trunk, own = (Heads(*parts) for parts in zip(*cut, strict=True))
    by_method = _padded if method is AttentionMethod.PADDED else _by_block
    output = by_method(own, trunk, tree, layer)
    if tree.trunk:
        output = torch.cat([_masked(trunk, tree.of_trunk(layer.window), layer), output], 2)
    return output.transpose(1, 2).contiguous()


def _method(heads: Heads, tree: TreeMask, layer: Layer) -> AttentionMethod:
    """Return the cheapest method that takes heads of this width."""
    method = tree.method(layer.window, layer.fusible)
    narrowest = min(heads.query.shape[-1], heads.value.shape[-1])
    if method is AttentionMethod.BLOCK_MASK and narrowest < flex.LEAST_WIDTH:
        return AttentionMethod.BLOCKS
    return method


def _repeated(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat each head until there are `heads`."""
    groups = heads // tensor.shape[1]
    return tensor.repeat_interleave(groups, 1) if groups > 1 else tensor


def _by_block(own: Heads, trunk: Heads, tree: TreeMask, layer: Layer) -> torch.Tensor:
    """Attend with a product per block."""
    cut = (torch.split_with_sizes(x, tree.sizes, 2) for x in own)
    outputs = []
    for query, key, value, mask in zip(*cut, tree.blocks(layer.window), strict=True):
        keys, values = torch.cat([trunk.key, key], 2), torch.cat([trunk.value, value], 2)
        outputs.append(_masked(Heads(query, keys, values), mask, layer))
    return torch.cat(outputs, 2)


def _masked(heads: Heads, mask: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Attend with the fused kernel, or hold the scores for a cap or a sink, which it lacks."""
    if not layer.fusible:
        return _held(heads, mask, layer)
    return F.scaled_dot_product_attention(
        *heads, attn_mask=mask.to(heads.query.dtype), scale=layer.scale
    )


def _held(heads: Heads, mask: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Attend with scores and softmax held in at least float32, as in the fused kernel."""
    wide = torch.promote_types(heads.query.dtype, torch.float32)
    scores = torch.matmul(heads.query.to(wide) * layer.scale, heads.key.to(wide).transpose(2, 3))
    if layer.cap is not None:
        scores = layer.cap * torch.tanh(scores / layer.cap)
    scores = scores + mask
    if layer.sink_H is None:
        weights = scores.softmax(-1)
    else:
        sink = layer.sink_H.to(wide).view(1, -1, 1, 1).expand(len(scores), -1, scores.shape[2], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return torch.matmul(weights.to(heads.value.dtype), heads.value)


def _padded(own: Heads, trunk: Heads, tree: TreeMask, layer: Layer) -> torch.Tensor:
    """Attend in all blocks at once, padded to the longest."""
    query, key, value = (_stacked(x, tree) for x in own)
    if tree.trunk:
        key = torch.cat([trunk.key.expand(len(key), -1, -1, -1), key], 2)
        value = torch.cat([trunk.value.expand(len(value), -1, -1, -1), value], 2)
    output = _held(Heads(query, key, value), tree.padded(layer.window), layer)
    unpadded = [block[:, :size] for block, size in zip(output, tree.sizes, strict=True)]
    return torch.cat(unpadded, 1)[None]


def _stacked(tensor: torch.Tensor, tree: TreeMask) -> torch.Tensor:
    """[1, heads, tokens, width] → [blocks, heads, longest, width]."""
    if min(tree.sizes) == tree.longest:
        heads, _, width = tensor.shape[1:]
        return tensor[0].view(heads, len(tree.sizes), tree.longest, width).transpose(0, 1)
    parts = torch.split_with_sizes(tensor[0], tree.sizes, 1)
    return torch.stack([F.pad(part, (0, 0, 0, tree.longest - part.shape[1])) for part in parts])


AttentionInterface.register(NAME, tree_attention)
