"""Loads a Hugging Face causal LM for tree packing, and computes passes over packed sequences.

Packing needs layers that see through a mask only. A model that carries a state from token to token
(Mamba, Jamba, the linear layers of Qwen3-Next) would carry it from one branch into the next; such
models are trained flat: each path is a sequence of its own.
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

_PACKABLE_LAYERS = {"full_attention", "sliding_attention"}
_NEUTRAL_FACTORS = {"logit_scale": 1.0, "logits_scaling": 1.0, "lm_head_multiplier": 1.0}

# Setting that the logits are multiplied with, or divided by, by model type.
_MULTIPLIERS = {"cohere": "logit_scale", "cohere2": "logit_scale", "hyperclovax": "logits_scaling"}
_DIVISORS = dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), "logits_scaling")

_STATEFUL = {"rwkv": "divides its own weights while it is not training"}


def load(folder: Path) -> PreTrainedModel:
    """Load the model in a folder, in float32, ready for tree attention.

    Raise InvalidInput for a folder without a sound causal LM, NotReady for one that the learner
    does not train yet.
    """
    # A service's log is lines.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        refuse_untrainable(config)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        message = " ".join(str(error).split())
        raise InvalidInput(f"cannot load a causal LM from {folder}: {message}") from None
    finite.refuse(model.named_parameters(), folder)
    return prepare(model)


def prepare(model: Any) -> PreTrainedModel:
    """Return a loaded model without dropout, with tree attention if it can be packed.

    Without dropout, because ratios compare the same function twice. Raise NotReady for a model that
    the learner does not train yet.
    """
    refuse_untrainable(model.config)
    output = model.get_output_embeddings()
    if output is None or getattr(output, "bias", None) is not None:
        raise NotReady(
            f"{type(model).__name__} has a biased or no output layer, "
            "which the learner does not train yet"
        )
    obstacle = unpackable(model)
    if obstacle:
        log.warning("%s: trees are not packed, each path is trained as a row of its own", obstacle)
    else:
        model.config._attn_implementation = tree_attention.NAME
    return model.eval()  # type: ignore[no-any-return]


def unpackable(model: Any) -> str:
    """Return why a model cannot be packed; empty if it can."""
    name = f"model type {model.config.model_type!r}"
    layer_types = getattr(model.config.get_text_config(), "layer_types", None) or ()
    others = sorted(set(layer_types) - _PACKABLE_LAYERS)
    if others:
        return f"{name} has {others[0]} layers, and only attention layers can be packed"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{name} has layers that take no other attention function"
    if getattr(model, "_is_stateful", False):
        return f"{name} carries a state from token to token"
    return ""


def is_packed(model: PreTrainedModel) -> bool:
    """Tell whether a prepared model takes sequences of many paths."""
    return bool(model.config._attn_implementation == tree_attention.NAME)


def budget(model: PreTrainedModel, tokens_per_row: int) -> int:
    """Return the most tokens of a packed sequence; 0 for a model that is trained flat.

    With a budget of 0 each path is a sequence of its own.
    """
    return tokens_per_row if is_packed(model) else 0


def recompute(model: PreTrainedModel) -> None:
    """Make layers keep their inputs only, and compute the rest again in the backward pass.

    Layers recompute only while they are training; the modules inside them stay as they are, so
    there is still no dropout. Raise NotReady for a model that cannot do so.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers or not model.supports_gradient_checkpointing:
        raise NotReady(
            f"optimise.recompute: model type {model.config.model_type!r} cannot do that; "
            "set it to false"
        )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in layers:
        layer.training = True


def refuse_untrainable(config: Any) -> None:
    """Raise NotReady for a model whose log-probs would be wrong."""
    kind = getattr(config, "model_type", "")
    if kind in _STATEFUL:
        raise NotReady(
            f"model type {kind!r} {_STATEFUL[kind]}; the learner does not do that yet: "
            "take another model"
        )
    for name, neutral in _NEUTRAL_FACTORS.items():
        known = name in (_MULTIPLIERS.get(kind), _DIVISORS.get(kind))
        if not known and getattr(config, name, neutral) not in (None, neutral):
            raise NotReady(
                f"model type {kind!r} sets {name}, which the learner does not do yet: "
                "take another model"
            )


def logit_factor(config: Any) -> float:
    """Return the factor of the logits, applied before their cap."""
    kind = getattr(config, "model_type", "")
    if kind in _MULTIPLIERS:
        return float(getattr(config, _MULTIPLIERS[kind]))
    if kind in _DIVISORS:
        return 1.0 / float(getattr(config, _DIVISORS[kind]))
    return 1.0


def states(
    model: PreTrainedModel, sequence: PackedSequence, mask: TreeMask | None = None
) -> torch.Tensor:
    """Return [U, D]: the last layer's state of each unique token, which the output layer reads.

    mask: the mask of the sequence, if it is made already.
    """
    weight: Any = model.get_input_embeddings().weight
    _refuse_beyond(model.config, int(sequence.position_U.max(initial=-1)) + 1)
    if not is_packed(model):
        return _flat_states(model, sequence, weight.device)
    found = model.base_model(
        input_ids=torch.from_numpy(sequence.token_U).to(weight.device)[None],
        position_ids=torch.from_numpy(sequence.position_U).to(weight.device)[None],
        use_cache=False,
        tree=mask_of(model, sequence) if mask is None else mask,
    )
    return found.last_hidden_state[0]  # type: ignore[no-any-return]


def _refuse_beyond(config: Any, tokens: int) -> None:
    """Raise NotReady for a path so long that it changes the rotations of others."""
    bound = reach(config)
    if 0 < bound < tokens:
        raise NotReady(
            f"model type {config.model_type!r} rotates all tokens otherwise where a path is longer "
            f"than {bound}, and a row has one of {tokens}; lower generate.max_new_tokens, or take "
            "another model"
        )


def mask_of(model: PreTrainedModel, sequence: PackedSequence) -> TreeMask:
    """Return the mask of a sequence, as the model's layers take it."""
    weight: Any = model.get_input_embeddings().weight
    return TreeMask(sequence, weight.dtype, weight.device)


def _flat_states(
    model: PreTrainedModel, sequence: PackedSequence, device: torch.device
) -> torch.Tensor:
    """Return the states of a sequence that is one path."""
    paths, positions = len(sequence.mask_P_T), sequence.position_U
    if paths != 1 or not (positions == range(len(positions))).all():
        raise NotReady(
            f"model type {model.config.model_type!r} is trained flat, and a row holds {paths} "
            "paths: pairs of siblings cannot be; choose a loss of paths instead of dpo"
        )
    token = torch.from_numpy(sequence.token_U).to(device)
    found = model.base_model(input_ids=token[None], use_cache=False)
    return found.last_hidden_state[0]  # type: ignore[no-any-return]


class Pass(NamedTuple):
    """Results of one pass over a sequence.

    logp_E: log-prob of each prediction.
    entropy_R: entropy at each readout.
    state_U_D: states of the unique tokens.
    soft_E, soft_mean_R: log π' of each prediction, and the mean over draws at each readout, if the
        loss needs them (services/learner/model/tempered.py).
    """

    logp_E: torch.Tensor
    entropy_R: torch.Tensor
    state_U_D: torch.Tensor
    soft_E: torch.Tensor | None = None
    soft_mean_R: torch.Tensor | None = None


def predictions(
    model: PreTrainedModel,
    state_U_D: torch.Tensor,
    sequence: PackedSequence,
    softening: Softening | None = None,
) -> Pass:
    """Return the results of the output layer, from the states of a sequence."""
    text_config = model.config.get_text_config()
    cap: float | None = getattr(text_config, "final_logit_softcapping", None)
    factor = logit_factor(text_config)
    weight_V_D = output_weight(model)
    read_U_D = state_U_D if factor == 1.0 else state_U_D * factor
    logp_E, entropy_R = token_logprobs(read_U_D, weight_V_D, sequence, cap)
    soft_E, soft_mean_R = None, None
    if softening:
        soft_E, soft_mean_R = softened(read_U_D, weight_V_D, sequence, softening, cap)
    return Pass(
        logp_E=logp_E,
        entropy_R=entropy_R,
        state_U_D=state_U_D,
        soft_E=soft_E,
        soft_mean_R=soft_mean_R,
    )


def output_weight(model: PreTrainedModel) -> torch.Tensor:
    """Return [V, D]: the matrix of the output layer."""
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return output.weight  # type: ignore[no-any-return]


def forward(
    model: PreTrainedModel, sequence: PackedSequence, softening: Softening | None = None
) -> Pass:
    """Compute one pass over the unique tokens of a sequence."""
    return predictions(model, states(model, sequence), sequence, softening)
