"""The check of a loaded model: our computation against transformers' own eager attention.

Log-probs of a few sampled paths are compared with those of plain passes by eager attention, on the
same weights, with masks and positions that transformers makes itself. During the check an attention
window of thousands of tokens is shrunk to a few, in the config and in every layer that holds it, so
that a prompt of a few tokens reaches beyond it. Weights, layers and code are those that will be
used (ADR 044).
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
"""Largest mean difference, in nats a token. SmolLM2-135M has 1e-5 in float32 and up to 0.2 in
bfloat16, a fifth of its limit; so a model of low precision is checked in float32 as well
(sharpened.py). A model of float64 keeps its softmax in float32."""

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
    """Return tokens that are the same each time."""
    embeddings: Any = model.get_input_embeddings()
    keys = np.full(count, key(0, "eager pass"), np.uint64)
    draws = uniforms(keys, np.arange(count, dtype=np.uint64))
    return (draws * len(embeddings.weight)).astype(np.int32)


@torch.no_grad()
def logprobs(model: PreTrainedModel, paths: Sequence[IntTokens]) -> list[Floats]:
    """Return the log-probs of each path's tokens except the first, by one eager pass."""
    ids = torch.zeros(len(paths), max(len(path) for path in paths), dtype=torch.long)
    for padded, path in zip(ids, paths, strict=True):  # padding is behind the path: causally unseen
        padded[: len(path)] = torch.from_numpy(path.astype(np.int64))
    ids = ids.to(model.device)
    with _eager(model):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    by_token = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0].cpu().numpy()
    return [padded[: len(path) - 1] for padded, path in zip(by_token, paths, strict=True)]


@contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    """Switch to transformers' own attention; models that cannot switch have no other."""
    own = model.config._attn_implementation
    can_switch = bool(getattr(model, "_supports_attention_backend", False))
    if can_switch:
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        if can_switch:
            model.set_attn_implementation(own)


@contextmanager
def short_windows(model: PreTrainedModel) -> Iterator[None]:
    """Shrink attention windows that a prompt does not exceed; they stay distinct and in order."""
    originals = [(holder, window) for holder in _holders(model) if (window := _window(holder)) > 0]
    windows = sorted({window for _, window in originals})
    shrunk = {window: min(window, _LEAST + 2 * i) for i, window in enumerate(windows)}
    try:
        for holder, window in originals:
            holder.sliding_window = shrunk[window]
        yield
    finally:
        for holder, window in originals:
            holder.sliding_window = window


def _holders(model: PreTrainedModel) -> list[Any]:
    """Return the model's configs and modules, each once."""
    modules = list(model.modules())
    configs: list[Any] = [model.config, model.config.get_text_config()]
    configs += [getattr(module, "config", None) for module in modules]
    by_id = {id(holder): holder for holder in (*configs, *modules) if holder is not None}
    return list(by_id.values())


def _window(holder: Any) -> int:
    window = getattr(holder, "sliding_window", None)
    return window if isinstance(window, int) else 0


def compare(model: PreTrainedModel, reader: str, computed: Mapping[str, Pairs]) -> None:
    """Raise NotReady unless our log-probs are those of eager attention, for each computation.

    reader: name of our code in a message.
    computed: pairs of (our log-probs, those of eager attention) by kind of computation.
    """
    tolerance = TOLERANCES.get(model.dtype, TOLERANCES[torch.bfloat16])
    for kind, pairs in computed.items():
        ours = np.concatenate([own for own, _ in pairs]).astype(np.float64)
        theirs = np.concatenate([eager for _, eager in pairs]).astype(np.float64)
        gaps = np.abs(ours - theirs)
        if float(gaps.mean()) <= tolerance:  # false for a NaN, which proves nothing
            continue
        worst = int(np.nanargmax(np.where(np.isnan(gaps), np.inf, gaps)))
        dtype = str(model.dtype).removeprefix("torch.")
        raise NotReady(
            f"model type {model.config.model_type!r}: {reader} computes another model than"
            f" transformers' eager attention on the same weights: {kind} differs by"
            f" {gaps.mean():.3g} nats a token (at most {tolerance} in {dtype}; the furthest is"
            f" {ours[worst]:.4g} instead of {theirs[worst]:.4g}); take another model"
        )


@contextmanager
def named(model: PreTrainedModel, reader: str) -> Iterator[None]:
    """Name the model in errors of an architecture whose code does not work with ours."""
    try:
        yield
    except (BanyanError, torch.OutOfMemoryError, torch.AcceleratorError):  # of no architecture
        raise
    except _FOREIGN as error:
        raise NotReady(
            f"model type {model.config.model_type!r}: {reader} cannot run it"
            f" ({with_place(error)}); take another model"
        ) from error
