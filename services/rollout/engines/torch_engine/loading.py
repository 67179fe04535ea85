"""Loading of model folders and tokenizers, choice of the arithmetic, new weights in place."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from banyan.environments.renderers import RendererSpec
from banyan.errors import InvalidInput
from banyan.segment import IntTokens
from services.chassis.model_checks.rope_reach import reach
from services.chassis.renderers.chatml import chat_tokens
from services.chassis.renderers.make import make
from services.chassis.renderers.port import Renderer
from services.chassis.weights import file, finite, value_head
from services.chassis.weights.value_head import ValueHead
from services.rollout.engines.torch_engine import attention


def choose_device() -> torch.device:
    """Return a GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the named type; for auto, bfloat16 where the hardware multiplies it, else float32."""
    if name != "auto":
        return torch.bfloat16 if name == "bfloat16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Load a model, frozen, with the attention of `with_attention`."""
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
    """Give a model the tree engine's attention, where its architecture allows it."""
    if getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(attention.NAME)
    return model


def context(model: Any) -> int:
    """Return the tokens that a model's positions reach with the same rotations.

    0 where its config has no limit.
    """
    named = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    bounds = (named if isinstance(named, int) else 0, reach(model.config))
    return min((bound for bound in bounds if bound > 0), default=0)


def load_weights(model: PreTrainedModel, manifest_path: Path) -> ValueHead | None:
    """Copy a policy's weights, whose digest was checked, into a model.

    Return its learned head, where it has a usable one. Raise InvalidInput, before any change, if
    the weights do not fit.
    """
    manifest = file.read(manifest_path)
    stored = file.read_tensors(manifest)
    tensors = {name: t for name, t in stored.items() if not name.startswith(file.HEAD)}
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    head = value_head.read(stored, output.weight, manifest_path)
    state = model.state_dict(keep_vars=True)
    _check(state, tensors, manifest_path)
    with torch.no_grad():
        copied: set[int] = set()
        for name, tensor in tensors.items():
            if state[name].data_ptr() not in copied:
                state[name].copy_(tensor)
                copied.add(state[name].data_ptr())
    return head


def _check(
    state: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], source: Path
) -> None:
    tied = {state[name].data_ptr() for name in tensors if name in state}
    missing = sorted(
        name for name, t in state.items() if name not in tensors and t.data_ptr() not in tied
    )
    extra = sorted(set(tensors) - set(state))
    if missing or extra:
        if missing:
            fault = f"lacks {missing[0]!r}"
        else:
            fault = f"holds {extra[0]!r}, which the model has not"
        raise InvalidInput(f"weights {source} {fault}; are they of another model?")
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape:
            raise InvalidInput(
                f"tensor {name} of {source} has shape {tuple(tensor.shape)} instead of"
                f" {tuple(state[name].shape)}; are they of another model?"
            )


class ChatTokenizer:
    """A Hugging Face tokenizer with its chat template."""

    def __init__(self, folder: Path, model: Any) -> None:
        self._inner = AutoTokenizer.from_pretrained(folder)
        self._renderers: dict[str, Renderer] = {}
        self.eos = _eos(model, self._inner.eos_token_id)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        """Return token ids up to where the answer begins.

        Without a chat template, messages are plain text joined by line ends.
        """
        return np.array(chat_tokens(self._inner, messages), np.int32)

    def encode(self, text: str) -> IntTokens:
        """Return token ids of a text alone; spelled-out special tokens are text as well."""
        return np.array(
            self._inner(text, add_special_tokens=False, split_special_tokens=True)["input_ids"],
            np.int32,
        )

    def renderer(self, spec: RendererSpec) -> Renderer:
        """Return the renderer of a spec; the same one for equal specs."""
        key = f"{spec} {json.dumps(spec.settings, sort_keys=True)}"
        if key not in self._renderers:
            self._renderers[key] = make(spec, self._inner, self.eos)
        return self._renderers[key]

    def decode(self, tokens: IntTokens) -> str:
        """Return text without special tokens."""
        return str(self._inner.decode(tokens.tolist(), skip_special_tokens=True))


def _eos(model: Any, of_tokenizer: int | None) -> frozenset[int]:
    of_config = model.config.eos_token_id
    of_generation = getattr(model.generation_config, "eos_token_id", None)
    ids: list[int] = []
    for eos in (of_config, of_generation, of_tokenizer):
        if eos is not None:
            ids += eos if isinstance(eos, list) else [eos]
    return frozenset(int(i) for i in ids)
