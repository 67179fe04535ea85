"""Loads a Hugging Face causal LM for tree packing, and refuses by name what tree packing does not do yet."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from banyan.errors import InvalidInput, NotReady
from services.learner import attention
from services.learner.attention import TreeMask
from services.learner.logprobs import token_logprobs
from services.learner.packing import Row

_LAYERS = {"full_attention", "sliding_attention"}
_SCALED = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0, "attn_logit_softcapping": None}


def compute_dtype(wanted: str) -> torch.dtype:
    """auto: bfloat16 where the CPU multiplies it natively, else float32."""
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return torch.bfloat16 if "avx512_bf16" in flags or "amx_bf16" in flags else torch.float32


def load(folder: Path) -> PreTrainedModel:
    """The model in a folder, in float32, ready for tree attention. Raises InvalidInput, NotReady."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a service's log is lines
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        refuse_unpackable(config)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"cannot load a causal LM from {folder}: {' '.join(str(error).split())}") from None
    return prepare(model)


def prepare(model: Any) -> PreTrainedModel:
    """A loaded model with tree attention, and without dropout: ratios compare the same function twice."""
    refuse_unpackable(model.config)
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise NotReady(f"{type(model).__name__} has a biased or no output layer; tree packing does not do that yet")
    if not getattr(model, "_supports_attention_backend", False):
        raise NotReady(f"{type(model).__name__} takes no other attention function; it cannot be packed yet")
    model.config._attn_implementation = attention.NAME
    return model.eval()  # type: ignore[no-any-return]


def refuse_unpackable(config: Any) -> None:
    """Raises NotReady for models whose layers need more than a mask over tokens."""
    kinds = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    if kinds:
        raise NotReady(
            f"model type {config.model_type!r} has {sorted(kinds)[0]} layers; only attention layers can be packed yet"
        )
    for name, neutral in _SCALED.items():
        if getattr(config, name, neutral) not in (None, neutral):
            raise NotReady(f"model type {config.model_type!r} sets {name}; tree packing does not do that yet")


def states(model: PreTrainedModel, row: Row) -> torch.Tensor:
    """The last layer's state of each unique token of a row: what its output layer reads."""
    weight: Any = model.get_input_embeddings().weight
    mask = TreeMask(row, weight.dtype, weight.device)
    tokens, positions = (torch.from_numpy(a).to(weight.device)[None] for a in (row.token_N, row.position_N))
    found = model.base_model(input_ids=tokens, position_ids=positions, use_cache=False, tree=mask)
    return found.last_hidden_state[0]  # type: ignore[no-any-return]


def predictions(model: PreTrainedModel, state_N_H: torch.Tensor, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each prediction of a row, and entropies, from its states."""
    return token_logprobs(state_N_H, output_weight(model), row)


def output_weight(model: PreTrainedModel) -> torch.Tensor:
    """[V, H]: the matrix of the output layer."""
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return output.weight  # type: ignore[no-any-return]


def forward(model: PreTrainedModel, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each prediction of a row, and entropies: one pass over its unique tokens."""
    return predictions(model, states(model, row), row)
