"""A long path beside short ones in the torch engine: their cost together, against each alone.

One request of 4,096 tokens, most of them prompt, and 256 short ones with prompts of their own, on a
small random model in float32, so that attention and the engine's own work weigh more than beside
the layers of a large one. No end token stops a branch. The three loads alternate, and medians of
the ratios of processor time are compared.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from banyan.segment import Sampling
from bench.harness.table import Result, median
from services.rollout.engines.port import Request

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
VOCABULARY = 2000
LONG = (3840, 256)  # prompt and new tokens
SHORT, SHORTS = (32, 32), 256
MOST = 1.5  # times the processor time of both alone


def run() -> Result:
    """Run the loads in turn."""
    import torch

    torch.set_num_threads(1)
    result, forward = Result("mixed"), _forward()
    long, short = _requests("long", 1, *LONG), _requests("short", SHORTS, *SHORT)
    _seconds(forward, _requests("warm", 8, *SHORT))
    took = [
        [_seconds(forward, load) for load in (long, short, [*long, *short])] for _ in range(RUNS)
    ]
    for name, seconds in zip(
        ("the long one alone", "the short ones alone", "together"),
        zip(*took, strict=True),
        strict=True,
    ):
        result.add(name, median(seconds), "s", "processor")
    ratio = median([both / (long_alone + others) for long_alone, others, both in took])
    result.add(
        "ratio of the sum", ratio, "x", f"bar: at most {MOST}" + (" MISSED" if ratio > MOST else "")
    )
    result.notes.append(
        f"one thread, median of {RUNS} alternating runs, load {os.getloadavg()[0]:.1f} at the end"
    )
    return result


def _forward() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from services.rollout.engines.torch_engine import loading
    from services.rollout.engines.torch_engine.forward import Forward

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "vocab_size": VOCABULARY,
    }
    heads: dict[str, Any] = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": sum(LONG),
    }
    model_class: Any = LlamaForCausalLM
    return Forward(
        loading.with_attention(
            model_class(LlamaConfig(**sizes, **heads)).eval().requires_grad_(False)
        )
    )


def _requests(name: str, count: int, length: int, new: int) -> list[Request]:
    rng = np.random.default_rng(count)
    prompts = rng.integers(0, VOCABULARY, (count, length)).astype(np.int32)
    return [
        Request((name, i), prompt, i, Sampling(max_new_tokens=new))
        for i, prompt in enumerate(prompts)
    ]


class _Endless:
    """Tokenizer of a model that never ends; it is never asked for text."""

    eos: frozenset[int] = frozenset()


def _seconds(forward: Any, requests: Sequence[Request]) -> float:
    """Return processor seconds for a new engine to sample all of them."""
    from banyan.policy import PolicyVersion
    from services.rollout.engines.torch_engine.engine import TorchEngine
    from services.rollout.engines.torch_engine.kv.kv_budget import Limits

    tokenizer: Any = _Endless()
    engine = TorchEngine(forward, tokenizer, Limits(), PolicyVersion(0, 0, b""))
    for request in requests:
        engine.submit(request)
    begun, ended = time.process_time(), 0
    while engine.busy:
        ended += len(engine.step())
    assert ended == len(requests)
    return time.process_time() - begun
