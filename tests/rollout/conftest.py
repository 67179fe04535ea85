"""A tiny random Llama with a tokenizer of digits and letters, and engines on it."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from banyan.environments.renderers import RendererSpec
from banyan.policy import PolicyVersion
from banyan.segment import IntTokens, Sampling
from services.chassis.renderers.port import Renderer
from services.rollout.engines.port import Engine, Request, Sampled
from services.rollout.engines.torch_engine import attention
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits

VOCABULARY = 300  # not a multiple of the sampler's block


class Letters:
    """A tokenizer of one letter for each token; token 1 ends."""

    eos = frozenset({1})

    def renderer(self, spec: RendererSpec) -> Renderer:
        raise NotImplementedError("nothing is answered here")

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        return np.array(
            [2 + ord(c) % (VOCABULARY - 2) for m in messages for c in m["content"]], np.int32
        )

    def decode(self, tokens: IntTokens) -> str:
        return "".join(chr(ord("a") + int(t) % 26) for t in tokens if int(t) not in self.eos)


def tiny_llama(seed: int = 0) -> PreTrainedModel:
    """Return a Llama of two layers, with four query heads on two kv heads, in float32.

    Its distributions are peaked enough that wrong positions show.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.5,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.set_attn_implementation(attention.NAME)
    return model


@pytest.fixture(scope="session")
def llama() -> PreTrainedModel:
    return tiny_llama()


@pytest.fixture
def make_engine(llama: PreTrainedModel) -> Callable[..., TorchEngine]:
    """Return a maker of engines on the tiny model.

    Without `eos` every segment runs to its limit.
    """

    def make(
        model: PreTrainedModel | None = None, eos: bool = False, **limits: int | bool
    ) -> TorchEngine:
        tokenizer = Letters()
        if not eos:
            tokenizer.eos = frozenset()
        return TorchEngine(
            Forward(model or llama), tokenizer, Limits(**limits), PolicyVersion(1, 0, b"p0")
        )  # type: ignore[arg-type]

    return make


def prompt(length: int, seed: int = 0) -> IntTokens:
    """Return a random prompt."""
    return (
        np.random.default_rng(1000 * seed + length).integers(2, VOCABULARY, length).astype(np.int32)
    )


def ask(
    key: object, prefix: IntTokens, draw_key: int = 1, keep: bool = False, **sampling: object
) -> Request:
    """Return a request."""
    settings = Sampling(**{"max_new_tokens": 8, **sampling})  # type: ignore[arg-type]
    return Request(key, prefix, draw_key, settings, keep)


def finish(
    engine: Engine, requests: Iterable[Request] = (), most_steps: int = 20_000
) -> dict[object, Sampled]:
    """Submit requests and step until the engine is idle; return the ended segments by key."""
    for request in requests:
        engine.submit(request)
    ended: dict[object, Sampled] = {}
    for _ in range(most_steps):
        if not engine.busy:
            return ended
        for sampled in engine.step():
            assert sampled.key not in ended, f"{sampled.key} ended twice"
            ended[sampled.key] = sampled
    raise AssertionError(f"not done after {most_steps} steps: {engine.stats()}")


def forced(
    model: PreTrainedModel, prefix: IntTokens, tokens: IntTokens, temperature: float = 1.0
) -> np.ndarray:
    """Return log-probs of `tokens` after `prefix`, by one pass with transformers' own attention."""
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        ids = torch.tensor(np.concatenate((prefix, tokens)), dtype=torch.long)[None]
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0].float()
    finally:
        model.set_attn_implementation(own)
    lp = torch.log_softmax(logits / (temperature or 1.0), -1)
    at = torch.arange(len(prefix) - 1, len(prefix) + len(tokens) - 1)
    return lp[at, ids[0, len(prefix) :]].numpy()


def save_weights(folder: Path, model: PreTrainedModel, step: int) -> tuple[PolicyVersion, Path]:
    """Write a policy as a learner publishes it, in float32 so that comparisons are exact."""
    from services.chassis.weights import file

    manifest = file.write(folder, f"policy-1-{step}", model.state_dict(), 1, step, dtype="float32")
    return PolicyVersion(1, step, manifest.digest), manifest.manifest_path
