"""Building of the vllm engine for a model folder: its KV memory and its longest path."""

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
from services.rollout.engines.vllm_engine.bounds import Bounds
from services.rollout.engines.vllm_engine.core import BLOCK, Core, CoreSettings
from services.rollout.engines.vllm_engine.engine import VllmEngine
from services.rollout.engines.vllm_engine.update import Updates


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine_settings of a recipe.

    block_size: tokens of a block; prefixes share whole blocks.
    eager: no compiled kernels.
    lora_rank: largest rank of policies that are adapters, 0 for whole weights.
    arguments: further arguments of vLLM's EngineArgs.
    """

    block_size: int = BLOCK
    eager: bool = True
    lora_rank: int = 0
    arguments: dict[str, Any] | None = None

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "EngineOptions":
        """Read a recipe's engine_settings. Raise InvalidInput for unknown ones."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(settings) - known):
            raise InvalidInput(
                f"engine vllm has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}"
            )
        return cls(**settings)


def build(
    folder: Path, resources: Resources, threads: int | None, policy: PolicyVersion
) -> VllmEngine:
    """Start vLLM with a model."""
    config = AutoConfig.from_pretrained(folder)
    device = loading.choose_device()
    dtype = loading.choose_dtype(resources.dtype, device)
    context = loading.context(SimpleNamespace(config=config))
    options = EngineOptions.of(resources.engine_settings)
    settings = CoreSettings(
        folder=folder,
        dtype=str(dtype).removeprefix("torch."),
        kv_bytes=kv_bytes(config.get_text_config(), resources.kv_tokens, options.block_size, dtype),
        max_branches=resources.max_branches,
        longest=min(context or resources.kv_tokens, resources.kv_tokens),
        threads=threads,
        block=options.block_size,
        eager=options.eager,
        lora_rank=options.lora_rank,
        whole=device.type == "cpu",
        more=options.arguments,
    )
    tokenizer = loading.ChatTokenizer(
        folder, SimpleNamespace(config=config, generation_config=_generation(folder))
    )
    loop = asyncio.new_event_loop()
    core = loop.run_until_complete(Core.start(settings))
    return VllmEngine(
        core=core,
        loop=loop,
        tokenizer=tokenizer,
        bounds=Bounds(
            kv_tokens=resources.kv_tokens, max_branches=resources.max_branches, context=context
        ),
        policy=policy,
        updates=Updates(core, shapes(folder), options.lora_rank),
    )


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors in a model's safetensors files; empty without any."""
    result: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = file.keys()  # the file itself cannot be iterated over
            result |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
    return result


def kv_bytes(config: Any, tokens: int, block: int, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of at least `tokens` tokens in whole blocks.

    vLLM keeps one block for itself.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    blocks = -(-tokens // block) + 1
    return int(blocks * block * config.num_hidden_layers * 2 * heads * dim * dtype.itemsize)


def _generation(folder: Path) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        return None
