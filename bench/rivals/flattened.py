"""A tree trained packed, and flattened to its paths, for `packing` and `gpu`.

Weights are random, in a model's shape.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from banyan.segment import Kind, Sampling, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from services.learner import losses
from services.learner.attention import matmuls, tree_attention
from services.learner.losses.aggregate import totals_of
from services.learner.model.load import Pass, forward, output_weight, predictions, prepare
from services.learner.packing import node_spans, packing, unroll
from services.learner.packing.packing import PackedSequence
from services.learner.training import gather

VOCABULARY = 49_152
SIZES: dict[str, dict[str, int]] = {
    "SmolLM2-135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "SmolLM2-1.7B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
}


def model(
    dtype: torch.dtype = torch.bfloat16, name: str = "SmolLM2-135M", device: str = "cpu"
) -> PreTrainedModel:
    """Return a model in the shape of the named one, prepared for packing."""
    torch.manual_seed(0)
    config: Any = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        **SIZES[name],  # type: ignore[arg-type]
    )
    model_class: Any = LlamaForCausalLM
    with torch.device(device):
        made = model_class(config)
    return prepare(made.to(dtype))


@dataclass(frozen=True)
class Shape:
    """Tree of a prompt, and below it `depth` levels of nodes with `branches` children of `new`
    tokens."""

    prompt: int
    branches: int
    new: int
    depth: int = 1

    @property
    def leaves(self) -> int:
        """Number of paths."""
        return int(self.branches**self.depth)

    @property
    def length(self) -> int:
        """Tokens of a path; all are equally long, so that flattened paths need no padding."""
        return self.prompt + self.depth * self.new

    @property
    def unique(self) -> int:
        """Tokens of the tree."""
        return self.prompt + self.new * int(
            sum(self.branches**level for level in range(1, self.depth + 1))
        )

    def __str__(self) -> str:
        deep = f", depth {self.depth}" if self.depth > 1 else ""
        return f"{self.prompt} x {self.branches} x {self.new}{deep}"


def tree(shape: Shape, seed: int = 0) -> tuple[Tree, list[Leaf]]:
    """Return random tokens in that shape."""
    rng = np.random.default_rng(seed)
    grown = Tree(rng.bytes(32))

    def segment(parent: Segment | None, count: int, ordinal: int, kind: Kind) -> Segment:
        tokens = rng.integers(0, VOCABULARY, count).astype(np.int32)
        values = np.full(count if kind is Kind.POLICY else 0, -10, np.float32)
        above, fork = (b"", 0) if parent is None else (parent.id, len(parent))
        policy = b"now" if kind is Kind.POLICY else b""
        new = Segment(
            tree_id=grown.tree_id,
            parent=above,
            fork=fork,
            ordinal=ordinal,
            kind=kind,
            tokens_T=tokens,
            logprobs_T=values,
            policy=policy,
            sampling=Sampling(temperature=1.0),
        )
        grown.add(new)
        return new

    level = [segment(None, shape.prompt, 0, Kind.PROMPT)]
    for _ in range(shape.depth):
        level = [
            segment(parent, shape.new, i, Kind.POLICY)
            for parent in level
            for i in range(shape.branches)
        ]
    return grown, [Leaf(last.id, len(last)) for last in level]


class Rivals:
    """Trees of one shape in one row, and one model, trained packed and flat.

    Both are a forward and a backward pass with the same loss, and log-probs only where needed.
    """

    def __init__(self, model: PreTrainedModel, shape: Shape, trees: int = 1) -> None:
        self.model, self.shape, self.trees = model, shape, trees
        parts, self.flat = [], []
        for seed in range(trees):
            grown, leaves = tree(shape, seed)
            view = TreeView(grown, leaves, dict.fromkeys(leaves, 1.0))
            worth_L = np.random.default_rng(seed).standard_normal(len(leaves))
            parts.append(unroll.unroll(view, range(len(leaves)), worth_L, None, b"now"))
            self.flat += [
                packing.pack([unroll.unroll(view, [leaf], worth_L, None, b"now")], 0)[0]
                for leaf in range(len(leaves))
            ]
        (self.row,) = packing.pack(parts, trees * shape.unique)
        self._totals = totals_of([self.row])
        self._loss = losses.build("ppo-clip", {})

    def packed(self) -> None:
        """Run forward and backward on the packed tree."""
        self._backward(self.row, forward(self.model, self.row))

    def flattened(self, batch: int, count: int | None = None) -> None:
        """Run forward and backward on the paths, `batch` at once, by transformers' own attention.

        count: number of paths; all by default
        """
        rows = self.flat[:count]
        for first in range(0, len(rows), batch):
            self._batch(rows[first : first + batch])

    def _batch(self, rows: list[PackedSequence]) -> None:
        device = output_weight(self.model).device
        tokens = torch.stack([torch.from_numpy(row.token_U) for row in rows]).to(device)
        self.model.config._attn_implementation = "sdpa"
        try:
            states = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        finally:
            self.model.config._attn_implementation = tree_attention.NAME
        joined = _joined(rows, self.shape.length)
        self._backward(joined, predictions(self.model, states.flatten(0, 1), joined))

    def _backward(self, row: PackedSequence, result: Pass) -> None:
        loss, *_ = self._loss.compute(gather.tokens(row, result), self._totals)
        loss.backward()  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Drop gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def work(self, tokens: int, predicted: int, pairs: int) -> float:
        """Return FLOPs forward and backward by the cost model: body, output layer, attention."""
        config: Any = self.model.config
        body = sum(p.numel() for name, p in self._body() if p.dim() > 1 and "embed" not in name)
        head = config.vocab_size * config.hidden_size
        return 6.0 * float(
            body * tokens
            + head * predicted
            + 2 * config.num_hidden_layers * config.hidden_size * pairs
        )

    def _body(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self.model.base_model.named_parameters())

    @property
    def bound(self) -> float:
        """Ratio of the work of flattened paths to that of the packed tree."""
        s = self.shape
        paths = len(self.flat)
        flat = self.work(
            paths * s.length,
            sum(len(r.place_R) for r in self.flat),
            paths * s.length * (s.length + 1) // 2,
        )
        pairs = matmuls.long_pairs(matmuls.plan(node_spans.spans(self.row), 0))
        return flat / self.work(len(self.row.token_U), len(self.row.place_R), pairs)


def _joined(rows: list[PackedSequence], length: int) -> PackedSequence:
    """Return one sequence that holds the predictions of several, with places in one run of
    states."""
    first = rows[0]
    offset = np.cumsum([0, *(len(row.readout_E) for row in rows[:-1])])
    places = np.cumsum([0, *(len(row.place_R) for row in rows[:-1])])

    def joined(name: str) -> Any:
        return np.concatenate([getattr(row, name) for row in rows])

    return replace(
        first,
        place_R=np.concatenate([row.place_R + i * length for i, row in enumerate(rows)]),
        temperature_R=joined("temperature_R"),
        readout_E=np.concatenate(
            [row.readout_E + at for row, at in zip(rows, places, strict=True)]
        ),
        token_E=joined("token_E"),
        index_P_T=np.concatenate(
            [row.index_P_T + at for row, at in zip(rows, offset, strict=True)]
        ),
        **{n: joined(n) for n in (f"{part}_P_T" for part in _OF_PATHS)},
    )


_OF_PATHS = ("mask", "behaviour", "drawn", "foreign", "advantage", "share", "origin")


def kept(model: PreTrainedModel, do: Callable[[], None]) -> int:
    """Return the bytes that a pass keeps for the backward pass, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        do()
    return sum(sizes.values())
