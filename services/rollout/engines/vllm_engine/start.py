"""Builds the vllm engine for a model folder: how much KV memory it takes, how long its paths may be."""

import asyncio
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, GenerationConfig

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.recipe import Resources
from services.rollout.engines.torch_engine import loading
from services.rollout.engines.vllm_engine.core import BLOCK, Core, CoreSettings
from services.rollout.engines.vllm_engine.engine import Bounds, VllmEngine
from services.rollout.engines.vllm_engine.update import Updates


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """engine_settings. block_size: tokens of a prefix that are shared or not; eager: no compiled kernels; lora_rank: most of
    policies that are adapters, 0 for whole weights; arguments: more of vLLM's EngineArgs."""

    block_size: int = BLOCK
    eager: bool = True
    lora_rank: int = 0
    arguments: dict[str, Any] | None = None

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "EngineOptions":
        """Reads a recipe's engine_settings."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(settings) - known):
            raise InvalidInput(
                f"engine vllm has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}"
            )
        return cls(**settings)


def build(
    folder: Path, resources: Resources, threads: int | None, policy: PolicyVersion
) -> VllmEngine:
    """Starts vLLM with a model."""
    config = AutoConfig.from_pretrained(folder)
    device = loading.choose_device()
    dtype = loading.choose_dtype(resources.dtype, device)
    context = loading.context(SimpleNamespace(config=config))
    chosen = EngineOptions.of(resources.engine_settings)
    settings = CoreSettings(
        folder=folder,
        dtype=str(dtype).removeprefix("torch."),
        kv_bytes=kv_bytes(config.get_text_config(), resources.kv_tokens, chosen.block_size, dtype),
        max_branches=resources.max_branches,
        longest=min(context or resources.kv_tokens, resources.kv_tokens),
        threads=threads,
        block=chosen.block_size,
        eager=chosen.eager,
        lora_rank=chosen.lora_rank,
        whole=device.type == "cpu",
        more=chosen.arguments,
    )
    tokenizer = loading.ChatTokenizer(
        folder, SimpleNamespace(config=config, generation_config=_generation(folder))
    )
    loop = asyncio.new_event_loop()
    core = loop.run_until_complete(Core.start(settings))
    bounds = Bounds(resources.kv_tokens, resources.max_branches, context)
    return VllmEngine(
        core, loop, tokenizer, bounds, policy, Updates(core, shapes(folder), chosen.lora_rank)
    )


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model's tensors, as its files have them; empty for a folder without safetensors."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = file.keys()  # it is no mapping: it cannot be iterated over
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
    return found


def kv_bytes(config: Any, tokens: int, block: int, dtype: torch.dtype) -> int:
    """KvBudget of keys and values of at least `tokens` tokens in whole blocks; vLLM keeps one block for itself."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    blocks = -(-tokens // block) + 1
    return int(blocks * block * config.num_hidden_layers * 2 * heads * dim * dtype.itemsize)


def _generation(folder: Path) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        return None
