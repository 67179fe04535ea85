"""Loads a model folder and its tokenizer, chooses the arithmetic, and takes new weights in place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from banyan.errors import InvalidInput
from banyan.segment import IntTokens
from services.chassis.model_checks.rope_reach import reach
from services.chassis.weights import file, finite, value_head
from services.chassis.weights.value_head import ValueHead
from services.rollout.engines.torch_engine import attention


def choose_device() -> torch.device:
    """A GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the hardware multiplies it, float32 elsewhere."""
    if name != "auto":
        return torch.bfloat16 if name == "bfloat16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model, frozen, with the tree engine's attention where its architecture lets itself be given one."""
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"cannot load a model from {folder}: {str(error).splitlines()[0]}"
        ) from None
    finite.refuse(model.named_parameters(), folder)
    with_attention(model)
    moved: PreTrainedModel = torch.nn.Module.to(model, device)
    moved.train(False)
    moved.requires_grad_(False)
    return moved


def with_attention(model: PreTrainedModel) -> PreTrainedModel:
    """The model with the tree engine's attention, where its architecture lets itself be given one."""
    if getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(attention.NAME)
    return model


def context(model: Any) -> int:
    """Tokens that the model's positions reach with the same rotations; 0 where its config names no end."""
    named = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    bounds = (named if isinstance(named, int) else 0, reach(model.config))
    return min((bound for bound in bounds if bound > 0), default=0)


def take(model: PreTrainedModel, manifest_path: Path) -> ValueHead | None:
    """Copies a policy's weights, whose digest was checked, into a model; its learned head, where it has one that may be
    heard. Raises InvalidInput, before any change, if they do not fit."""
    manifest = file.read(manifest_path)
    held = file.read_tensors(manifest)
    tensors = {name: tensor for name, tensor in held.items() if not name.startswith(file.HEAD)}
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    learned = value_head.read(held, output.weight, manifest_path)
    state = model.state_dict(keep_vars=True)
    _check(state, tensors, manifest_path)
    with torch.no_grad():
        done: set[int] = set()
        for name, tensor in tensors.items():
            if state[name].data_ptr() not in done:
                state[name].copy_(tensor)
                done.add(state[name].data_ptr())
    return learned


def _check(
    state: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], source: Path
) -> None:
    tied = {state[name].data_ptr() for name in tensors if name in state}
    missing = sorted(
        name for name, t in state.items() if name not in tensors and t.data_ptr() not in tied
    )
    extra = sorted(set(tensors) - set(state))
    if missing or extra:
        what = (
            f"lacks {missing[0]!r}" if missing else f"holds {extra[0]!r}, which the model has not"
        )
        raise InvalidInput(f"weights {source} {what}; are they of another model?")
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape:
            shapes = f"{tuple(tensor.shape)} instead of {tuple(state[name].shape)}"
            raise InvalidInput(
                f"tensor {name} of {source} has shape {shapes}; are they of another model?"
            )


class ChatTokenizer:
    """A Hugging Face tokenizer with its chat template."""

    def __init__(self, folder: Path, model: Any) -> None:
        self._inner = AutoTokenizer.from_pretrained(folder)
        self.eos = _eos(model, self._inner.eos_token_id)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        """Token ids up to where the answer begins; plain text joined by line ends where there is no template."""
        if self._inner.chat_template is None:
            text = "\n".join(m["content"] for m in messages) + "\n"
        else:
            turns = [dict(m) for m in messages]
            text = str(
                self._inner.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            )
        ids = self._inner(text, add_special_tokens=self._inner.chat_template is None)["input_ids"]
        return np.array(ids, np.int32)

    def encode(self, text: str) -> IntTokens:
        """Token ids of a text alone; what looks like a special token is text as well."""
        return np.array(
            self._inner(text, add_special_tokens=False, split_special_tokens=True)["input_ids"],
            np.int32,
        )

    def decode(self, tokens: IntTokens) -> str:
        """Text without special tokens."""
        return str(self._inner.decode(tokens.tolist(), skip_special_tokens=True))


def _eos(model: Any, of_tokenizer: int | None) -> frozenset[int]:
    named = [
        model.config.eos_token_id,
        getattr(model.generation_config, "eos_token_id", None),
        of_tokenizer,
    ]
    ids = [i for n in named for i in (n if isinstance(n, list) else [n]) if i is not None]
    return frozenset(int(i) for i in ids)
