"""Rotations that change with the path's length bound the context of an engine."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel

from banyan.errors import InvalidInput, NotReady
from banyan.segment import Sampling
from services.chassis.model_checks.rope_reach import reach
from services.learner.model import attention_check as of_learner
from services.learner.model import load as models
from services.learner.packing import packing
from services.rollout.engines.port import Request
from services.rollout.engines.torch_engine import attention_check as of_engine
from services.rollout.engines.torch_engine import (
    loading,
)
from services.rollout.engines.torch_engine.kv.kv_budget import KvBudget, Limits
from services.rollout.engines.torch_engine.scheduling.limits import check
from tests.engines.families import made

SWITCHING = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [9.0] * 4,
    "rope_theta": 1e4,
}


def phi3() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.4}
    long = {
        "max_position_embeddings": 256,
        "original_max_position_embeddings": 32,
        "rope_parameters": dict(SWITCHING),
    }
    return Phi3ForCausalLM(Phi3Config(**sizes, **heads, **long)).eval()


def test_rotations_reach_as_far_as_they_are_the_same() -> None:
    model = phi3()
    assert reach(model.config) == loading.context(model) == 32
    assert reach(made("llama").config) == 0 and loading.context(made("llama")) == 256
    short, long = (torch.arange(n)[None] % 64 for n in (32, 33))
    with torch.no_grad():
        first, after = (model(input_ids=ids).logits[0, 8] for ids in (short, long))
    assert float((first - after).abs().max()) > 1e-2, "a longer path changes tokens before its end"


def test_of_several_rotations_the_shortest_reach_counts() -> None:
    """Layers of different types may rotate in different ways."""

    def config(**ropes: object) -> Any:
        text = SimpleNamespace(rope_parameters=ropes, max_position_embeddings=256)
        return SimpleNamespace(get_text_config=lambda: text)

    plain, long = {"rope_type": "default"}, {**SWITCHING, "original_max_position_embeddings": 32}
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    assert reach(config(full_attention=dynamic, sliding_attention=long)) == 32
    assert reach(config(full_attention=plain, sliding_attention=dynamic)) == 256
    assert reach(config(full_attention=plain)) == reach(config(**plain)) == 0
    assert reach(config(**long)) == 32


def test_paths_beyond_that_are_refused() -> None:
    model = phi3()
    kv_budget = KvBudget(
        of_engine.checked(loading.with_attention(model)).kv, Limits(context=loading.context(model))
    )
    check(Request(0, np.arange(28, dtype=np.int32), 0, Sampling(max_new_tokens=4)), kv_budget, 64)
    with pytest.raises(
        InvalidInput, match=r"a path of 33 tokens .* is longer than the model's context of 32"
    ):
        check(
            Request(0, np.arange(29, dtype=np.int32), 0, Sampling(max_new_tokens=4)), kv_budget, 64
        )
    prepared = models.prepare(phi3())
    pieces = of_learner.trees(np.arange(32 + 3 * 2) % 64)
    row = packing.pack(pieces, 1000)[0]
    with pytest.raises(
        NotReady,
        match=r"model type 'phi3' rotates all tokens otherwise .* longer than 32, .* one of 34;",
    ):
        models.forward(prepared, row)
