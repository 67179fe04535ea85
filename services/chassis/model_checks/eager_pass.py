"""Whether what we compute with a model is what transformers computes with it: asked once when a model is loaded.

Log-probs of a few sampled paths are compared with those of plain passes by transformers' own eager attention, on the same
weights, with masks and positions that transformers makes itself. A window of thousands of tokens is shrunk to a few while
that lasts, in the config and in every layer that holds it, so that a prompt of a few tokens reaches beyond it; it is given
back afterwards. Weights, layers and code stay those that will compute (docs/adr/044).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from banyan.draws import key, uniforms
from banyan.errors import BanyanError, NotReady, with_place
from banyan.segment import Floats, IntTokens

PROMPT, ANSWER = 12, 3  # tokens
TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 1.0}
"""Nats a token, mean of a comparison. SmolLM2-135M: 1e-5 in float32, up to 0.2 in bfloat16, of which this is five times; so
a model of low precision is looked at in float32 as well (sharpened.py). One of float64 keeps its softmax in float32."""

_LEAST = 4  # tokens of the shortest shrunk window
_FOREIGN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that the model code of an untried architecture may raise."""

Pairs = Sequence[tuple[Floats, Floats]]


def prompt(model: PreTrainedModel, count: int = PROMPT) -> IntTokens:
    """Tokens that are the same each time."""
    embeddings: Any = model.get_input_embeddings()
    keys = np.full(count, key(0, "eager pass"), np.uint64)
    return (uniforms(keys, np.arange(count, dtype=np.uint64)) * len(embeddings.weight)).astype(
        np.int32
    )


@torch.no_grad()
def logprobs(model: PreTrainedModel, paths: Sequence[IntTokens]) -> list[Floats]:
    """Log-probs of all tokens of each path but the first, by one plain pass of eager attention."""
    ids = torch.zeros(len(paths), max(len(path) for path in paths), dtype=torch.long)
    for row, path in zip(
        ids, paths, strict=True
    ):  # what fills a shorter one up stands behind it, where nothing looks
        row[: len(path)] = torch.from_numpy(path.astype(np.int64))
    ids = ids.to(model.device)
    with _eager(model):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    found = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0].cpu().numpy()
    return [row[: len(path) - 1] for row, path in zip(found, paths, strict=True)]


@contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    """transformers' own attention, for models that can be told which; the others have no other."""
    own = model.config._attn_implementation
    told = bool(getattr(model, "_supports_attention_backend", False))
    if told:
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        if told:
            model.set_attn_implementation(own)


@contextmanager
def short_windows(model: PreTrainedModel) -> Iterator[None]:
    """Shrinks attention windows that a prompt does not reach beyond; different ones stay different, and in order."""
    before = [(holder, window) for holder in _holders(model) if (window := _window(holder)) > 0]
    short = {
        window: min(window, _LEAST + 2 * i)
        for i, window in enumerate(sorted({window for _, window in before}))
    }
    try:
        for holder, window in before:
            holder.sliding_window = short[window]
        yield
    finally:
        for holder, window in before:
            holder.sliding_window = window


def _holders(model: PreTrainedModel) -> list[Any]:
    """The model's configs and layers, each once."""
    modules = list(model.modules())
    configs = [
        model.config,
        model.config.get_text_config(),
        *(getattr(m, "config", None) for m in modules),
    ]
    return list(
        {id(holder): holder for holder in (*configs, *modules) if holder is not None}.values()
    )


def _window(holder: Any) -> int:
    window = getattr(holder, "sliding_window", None)
    return window if isinstance(window, int) else 0


def compare(model: PreTrainedModel, reader: str, said: Mapping[str, Pairs]) -> None:
    """Raises NotReady unless, of each kind of computation, (log-probs, those of eager attention) are the same.

    reader: who computes, as it is called in a sentence.
    """
    tolerance = TOLERANCES.get(model.dtype, TOLERANCES[torch.bfloat16])
    for kind, pairs in said.items():
        ours, theirs = (
            np.concatenate([pair[side] for pair in pairs]).astype(np.float64) for side in (0, 1)
        )
        gaps = np.abs(ours - theirs)
        if not float(gaps.mean()) <= tolerance:  # a NaN is no proof
            worst = int(np.nanargmax(np.where(np.isnan(gaps), np.inf, gaps)))
            raise NotReady(
                f"model type {model.config.model_type!r}: {reader} computes another model than transformers' eager attention"
                f" on the same weights: {kind} differs by {gaps.mean():.3g} nats a token (at most {tolerance} in"
                f" {str(model.dtype).removeprefix('torch.')}; the furthest is {ours[worst]:.4g} instead of"
                f" {theirs[worst]:.4g}); take another model"
            )


@contextmanager
def named(model: PreTrainedModel, reader: str) -> Iterator[None]:
    """Says of which model it is what code of an architecture raises that does not go together with ours."""
    try:
        yield
    except (BanyanError, torch.OutOfMemoryError, torch.AcceleratorError):  # of no architecture
        raise
    except _FOREIGN as error:
        raise NotReady(
            f"model type {model.config.model_type!r}: {reader} cannot run it ({with_place(error)}); take another model"
        ) from error
