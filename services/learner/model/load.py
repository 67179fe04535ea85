"""Loads a Hugging Face causal LM for tree packing. Those that cannot be packed are trained flat: a path is a row.

Packing needs layers that see through a mask only. What carries a state from token to token (Mamba, Jamba, the linear layers
of Qwen3-Next) would carry it from one branch into the next.
"""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from banyan.errors import InvalidInput, NotReady
from services.chassis.model_checks.rope_reach import reach
from services.chassis.weights import finite
from services.learner.attention import tree_attention
from services.learner.attention.mask import TreeMask
from services.learner.model.logprobs import token_logprobs
from services.learner.model.tempered import Softening, softened
from services.learner.packing.packing import PackedSequence

log = logging.getLogger(__name__)

_LAYERS = {"full_attention", "sliding_attention"}
_SCALED = {"logit_scale": 1.0, "logits_scaling": 1.0, "lm_head_multiplier": 1.0}
_TIMES = {"cohere": "logit_scale", "cohere2": "logit_scale", "hyperclovax": "logits_scaling"}
_OVER = dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), "logits_scaling")
"""By model type: the setting that logits are multiplied with, or divided by."""
_STATEFUL = {"rwkv": "divides its own weights while it is not training"}


def load(folder: Path) -> PreTrainedModel:
    """The model in a folder, in float32, ready for tree attention. Raises InvalidInput, NotReady."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a service's log is lines
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        refuse_untrainable(config)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"cannot load a causal LM from {folder}: {' '.join(str(error).split())}"
        ) from None
    finite.refuse(model.named_parameters(), folder)
    return prepare(model)


def prepare(model: Any) -> PreTrainedModel:
    """A loaded model without dropout: ratios compare the same function twice. With tree attention where it can be packed."""
    refuse_untrainable(model.config)
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise NotReady(
            f"{type(model).__name__} has a biased or no output layer, which the learner does not train yet"
        )
    why = unpackable(model)
    if why:
        log.warning("%s: trees are not packed, each path is trained as a row of its own", why)
    else:
        model.config._attn_implementation = tree_attention.NAME
    return model.eval()  # type: ignore[no-any-return]


def unpackable(model: Any) -> str:
    """Why a model cannot be packed; empty if it can."""
    kinds = sorted(
        set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - _LAYERS
    )
    if kinds:
        return f"model type {model.config.model_type!r} has {kinds[0]} layers, and only attention layers can be packed"
    if not getattr(model, "_supports_attention_backend", False):
        return f"model type {model.config.model_type!r} has layers that take no other attention function"
    if getattr(model, "_is_stateful", False):
        return f"model type {model.config.model_type!r} carries a state from token to token"
    return ""


def is_packed(model: PreTrainedModel) -> bool:
    """Whether a prepared model takes rows of many paths."""
    return bool(model.config._attn_implementation == tree_attention.NAME)


def budget(model: PreTrainedModel, tokens_per_row: int) -> int:
    """Tokens of a row; 0, with which each path is a row of its own, for models that are trained flat."""
    return tokens_per_row if is_packed(model) else 0


def recompute(model: PreTrainedModel) -> None:
    """Makes layers keep only what goes into them, and compute the rest again in the backward pass. Raises NotReady.

    Layers recompute only while they are training; what is inside them stays as it is, so there is still no dropout."""
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers or not model.supports_gradient_checkpointing:
        raise NotReady(
            f"optimise.recompute: model type {model.config.model_type!r} cannot do that; set it to false"
        )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in layers:
        layer.training = True


def refuse_untrainable(config: Any) -> None:
    """Raises NotReady for models whose log-probs would be wrong."""
    kind = getattr(config, "model_type", "")
    if kind in _STATEFUL:
        raise NotReady(
            f"model type {kind!r} {_STATEFUL[kind]}; the learner does not do that yet: take another model"
        )
    for name, neutral in _SCALED.items():
        known = name in (_TIMES.get(kind), _OVER.get(kind))
        if not known and getattr(config, name, neutral) not in (None, neutral):
            raise NotReady(
                f"model type {kind!r} sets {name}, which the learner does not do yet: take another model"
            )


def logit_factor(config: Any) -> float:
    """The factor of the logits, applied before their cap."""
    kind = getattr(config, "model_type", "")
    times, over = _TIMES.get(kind), _OVER.get(kind)
    factor: float = (
        getattr(config, times) if times else 1.0 / getattr(config, over) if over else 1.0
    )
    return factor


def states(
    model: PreTrainedModel, row: PackedSequence, mask: TreeMask | None = None
) -> torch.Tensor:
    """The last layer's state of each unique token of a row: what its output layer reads. mask: the row's, if it is made."""
    weight: Any = model.get_input_embeddings().weight
    _refuse_beyond(model.config, int(row.position_N.max(initial=-1)) + 1)
    if not is_packed(model):
        return _flat(model, row, weight.device)
    mask = mask_of(model, row) if mask is None else mask
    tokens, positions = (
        torch.from_numpy(a).to(weight.device)[None] for a in (row.token_N, row.position_N)
    )
    found = model.base_model(input_ids=tokens, position_ids=positions, use_cache=False, tree=mask)
    return found.last_hidden_state[0]  # type: ignore[no-any-return]


def _refuse_beyond(config: Any, tokens: int) -> None:
    """Raises NotReady for paths that change the rotations of others."""
    if 0 < (bound := reach(config)) < tokens:
        raise NotReady(
            f"model type {config.model_type!r} rotates all tokens otherwise where a path is longer than {bound}, and a row"
            f" has one of {tokens}; lower generate.max_new_tokens, or take another model"
        )


def mask_of(model: PreTrainedModel, row: PackedSequence) -> TreeMask:
    """Who sees whom in a row, as the model's layers take it."""
    weight: Any = model.get_input_embeddings().weight
    return TreeMask(row, weight.dtype, weight.device)


def _flat(model: PreTrainedModel, row: PackedSequence, device: torch.device) -> torch.Tensor:
    """States of a row that is one path."""
    if len(row.mask_P_T) != 1 or not (row.position_N == range(len(row.position_N))).all():
        raise NotReady(
            f"model type {model.config.model_type!r} is trained flat, and a row holds {len(row.mask_P_T)} paths: pairs of "
            f"siblings cannot be; choose a loss of paths instead of dpo"
        )
    found = model.base_model(
        input_ids=torch.from_numpy(row.token_N).to(device)[None], use_cache=False
    )
    return found.last_hidden_state[0]  # type: ignore[no-any-return]


class Pass(NamedTuple):
    """What one pass says of a row: log-prob of each prediction, entropy of each place, states of the unique tokens; where a
    loss asks for it, log π' of each prediction and the mean over draws at each place (services.learner.model.tempered)."""

    logp_E: torch.Tensor
    entropy_R: torch.Tensor
    state_N_H: torch.Tensor
    soft_E: torch.Tensor | None = None
    soft_mean_R: torch.Tensor | None = None


def predictions(
    model: PreTrainedModel,
    state_N_H: torch.Tensor,
    row: PackedSequence,
    softening: Softening | None = None,
) -> Pass:
    """What the output layer says of a row, from its states."""
    cap: float | None = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    weight_V_H, factor = output_weight(model), logit_factor(model.config.get_text_config())
    read_N_H = state_N_H if factor == 1.0 else state_N_H * factor
    said = token_logprobs(read_N_H, weight_V_H, row, cap)
    soft = softened(read_N_H, weight_V_H, row, softening, cap) if softening else (None, None)
    return Pass(*said, state_N_H, *soft)


def output_weight(model: PreTrainedModel) -> torch.Tensor:
    """[V, H]: the matrix of the output layer."""
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return output.weight  # type: ignore[no-any-return]


def forward(
    model: PreTrainedModel, row: PackedSequence, softening: Softening | None = None
) -> Pass:
    """One pass over a row's unique tokens."""
    return predictions(model, states(model, row), row, softening)
