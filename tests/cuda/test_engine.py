"""The torch engine on a CUDA device: its check of a model, greedy tokens, branches of trunks."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from banyan.policy import PolicyVersion
from banyan.segment import IntTokens
from services.rollout.engines.torch_engine import attention, attention_check
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.kv.kv_budget import Limits
from tests.rollout.conftest import VOCABULARY, Letters, ask, finish, prompt


def llama(dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False).to(device, dtype)
    model.set_attn_implementation(attention.NAME)
    return model


def engine_of(model: PreTrainedModel, **limits: int | bool) -> TorchEngine:
    tokenizer = Letters()
    tokenizer.eos = frozenset()
    forward = attention_check.checked(model, bool(limits.get("deterministic")))
    return TorchEngine(forward, tokenizer, Limits(**limits), PolicyVersion(1, 0, b"p"))


@torch.no_grad()
def rescored(model: PreTrainedModel, prefix: IntTokens, tokens: IntTokens, t: float) -> np.ndarray:
    """Return the tokens' log-probs by one eager pass of transformers."""
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    ids = torch.tensor(np.concatenate((prefix, tokens)), dtype=torch.long, device=model.device)
    logits = model(input_ids=ids[None], use_cache=False).logits[0].float() / (t or 1.0)
    model.set_attn_implementation(own)
    at = torch.arange(len(prefix) - 1, len(prefix) + len(tokens) - 1)
    return torch.log_softmax(logits, -1)[at, ids[len(prefix) :]].cpu().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("deterministic", [False, True])
def test_log_probs_are_those_of_a_teacher_forced_pass(
    cuda: torch.device, dtype: torch.dtype, deterministic: bool
) -> None:
    model = llama(dtype, cuda)
    engine = engine_of(model, deterministic=deterministic, share_from=64)
    requests = [
        ask((n, b), prompt(n), 100 * n + b, temperature=t, max_new_tokens=m)
        for n, m, t in ((5, 40, 1.0), (70, 25, 0.6), (200, 37, 1.3))
        for b in range(9)
    ]
    ended = finish(engine, requests)
    gaps = [
        np.abs(
            rescored(model, r.prefix_P, ended[r.key].tokens_T, r.sampling.temperature)
            - ended[r.key].logprobs_T
        )
        for r in requests
    ]
    exact = dtype is torch.float32
    assert max(gap.max() for gap in gaps) < (1e-3 if exact else 1.0)
    assert np.mean([gap.mean() for gap in gaps]) < (1e-4 if exact else 0.1)


def test_greedy_tokens_are_those_of_generate(cuda: torch.device) -> None:
    model = llama(torch.float32, cuda)
    prompts = [prompt(n) for n in (4, 33, 200)]
    requests = [
        ask((n, b), p, b, temperature=0.0, max_new_tokens=24)
        for n, p in enumerate(prompts)
        for b in range(4)
    ]
    ended = finish(engine_of(model, share_from=64), requests)
    plain = llama(torch.float32, cuda)
    plain.set_attn_implementation("sdpa")
    for n, prefix in enumerate(prompts):
        ids = torch.tensor(prefix, dtype=torch.long, device=cuda)[None]
        out = plain.generate(  # type: ignore[operator]
            ids, do_sample=False, max_new_tokens=24, eos_token_id=-1, pad_token_id=0
        )
        for b in range(4):
            assert ended[n, b].tokens_T.tolist() == out[0, len(prefix) :].tolist()


def test_children_and_narrow_engines_draw_the_same(cuda: torch.device) -> None:
    """What runs beside a branch, how its trunk is kept, and pauses change no draw."""
    model = llama(torch.float32, cuda)
    requests = [
        ask((n, b), prompt(n), 10 * n + b, max_new_tokens=20) for n in (9, 90) for b in range(8)
    ]
    wide = finish(engine_of(model, share_from=64), requests)
    narrow = finish(engine_of(model, share_from=10**6, max_branches=5), requests[::-1])
    tight = finish(engine_of(model, kv_tokens=640, ahead=8), requests)
    same = [
        wide[r.key].tokens_T.tolist()
        == narrow[r.key].tokens_T.tolist()
        == tight[r.key].tokens_T.tolist()
        for r in requests
    ]
    assert np.mean(same) > 0.9  # a draw on the edge of two tokens may fall either way
