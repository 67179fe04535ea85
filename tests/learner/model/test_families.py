"""Tiny random models of each family, packed or flat, equal their paths one by one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from banyan.errors import NotReady
from banyan.recipe import Optimise
from banyan.view import TreeView
from services.learner.attention import mask
from services.learner.attention.cost_model import AttentionMethod
from services.learner.model import load as models
from services.learner.model.load import prepare
from services.learner.packing import packing, unroll
from services.learner.training.trainer import Trainer
from tests.learner.flat_reference import Grads, flat_loss, packed

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MORE = {"initializer_range": 0.3, "max_position_embeddings": 256, "head_dim": 8, "pad_token_id": 0}
WINDOWED = {"sliding_window": 6, "num_hidden_layers": 4}
LAYERS = ["sliding_attention", "full_attention"] * 2
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"num_hidden_layers": 2},
    "Mistral": {"num_hidden_layers": 2, "sliding_window": 6},
    "Qwen2": {"num_hidden_layers": 2},
    "Qwen3": {"num_hidden_layers": 2},
    "Gemma2": {
        **WINDOWED, "layer_types": LAYERS,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    },
    "Gemma3": {**WINDOWED, "layer_types": LAYERS},
    "GptOss": {**WINDOWED, "layer_types": LAYERS, "num_local_experts": 2, "num_experts_per_tok": 1},
    "Cohere": {"num_hidden_layers": 2, "logit_scale": 0.3},
    "Granite": {"num_hidden_layers": 2, "logits_scaling": 3.0, "attention_multiplier": 0.4},
    "MiniCPM3": {
        "num_hidden_layers": 2, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6, "hidden_size": 32,
        "dim_model_base": 32,
    },
}  # fmt: skip
EAGER = ("Gemma2", "GptOss")  # whose scores SDPA cannot compute


def tiny(name: str, seed: int = 0) -> Any:
    """Return a model in float64, its norms too, so that other orders of sums agree."""
    torch.manual_seed(seed)
    config = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config"))
    model = (
        getattr(transformers, f"{name}ForCausalLM")(config(**{**SIZES, **MORE, **FAMILIES[name]}))
        .double()
        .eval()
    )
    if name in EAGER:
        chosen = model.set_attn_implementation
        model.set_attn_implementation = lambda requested: chosen(
            "eager" if requested == "sdpa" else requested
        )
    if name == "GptOss":
        model.set_experts_implementation("eager")  # the others have no float64
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm(module, plus_one=name.startswith("Gemma"))
        if hasattr(module, "embed_scale") and isinstance(module.embed_scale, torch.Tensor):
            module.embed_scale = module.embed_scale.double()
    return model


def _norm(module: Any, plus_one: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon

    def forward(x: torch.Tensor) -> torch.Tensor:
        normed = x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        scaled: torch.Tensor = normed * (1 + module.weight if plus_one else module.weight)
        return scaled

    return forward


def forest_of(forest: Any, seed: int, longest: int = 7) -> tuple[list[TreeView], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    views = [forest.random(rng, 9, longest, begin=[3, 1, 4, 1]) for _ in range(3)]
    return views, [
        np.where(np.isfinite(v.rewards_L), rng.standard_normal(len(v.rewards_L)), np.nan)
        for v in views
    ]


def sequences_of(
    views: list[TreeView], advantages: list[np.ndarray], budget: int
) -> list[packing.PackedSequence]:
    parts = [
        unroll.unroll(view, run, leaf_L, None, b"now")
        for view, leaf_L in zip(views, advantages, strict=True)
        for run in unroll.divide(view, unroll.trained_leaves(leaf_L), budget)
    ]
    return packing.pack(parts, budget)


def difference(a: Grads, b: Grads) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def forced(method: AttentionMethod) -> Callable[..., AttentionMethod]:
    """Return a choice of this method, or block by block for layers that cannot go node by node."""

    def choose(sequence: packing.PackedSequence, matmuls: Any) -> AttentionMethod:
        if method is AttentionMethod.NODES and matmuls is None:
            return AttentionMethod.BLOCKS
        return method

    return choose


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_equals_flat(name: str, forest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    views, advantages = forest_of(forest, 11)
    model = tiny(name)
    longest = max(
        int(sequence.position_U.max()) + 1 for sequence in sequences_of(views, advantages, 400)
    )
    assert longest >= 12  # twice the window
    expected, flat = flat_loss(model, views, advantages, "reinforce", {})
    # The eager softmax, or norm, of these two is in float32.
    bound = 1e-7 if name in ("Gemma2", "Cohere") else 1e-9
    for method in (AttentionMethod.PADDED, AttentionMethod.BLOCKS, AttentionMethod.NODES, None):
        if method is not None:
            monkeypatch.setattr(mask, "choose", forced(method))
        else:
            monkeypatch.undo()
        for budget in (30, 400):
            got, grads = packed(model, sequences_of(views, advantages, budget), "reinforce", {})
            assert got == pytest.approx(expected, abs=bound)
            assert difference(flat, grads) < 10 * bound


@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "Gemma3"])
def test_without_its_window_a_model_is_another(
    name: str, forest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, advantages = forest_of(forest, 11)
    model = tiny(name)
    expected, flat = flat_loss(model, views, advantages, "reinforce", {})
    monkeypatch.setattr(mask.TreeMask, "window", lambda self, given: None)
    got, grads = packed(model, sequences_of(views, advantages, 400), "reinforce", {})
    assert abs(got - expected) > 1e-4
    assert difference(flat, grads) > 1e-4


def test_a_model_without_its_soft_caps_is_another(forest: Any) -> None:
    views, advantages = forest_of(forest, 11)
    model = tiny("Gemma2")
    expected, _ = flat_loss(model, views, advantages, "reinforce", {})
    for name in ("final_logit_softcapping",):
        original = getattr(model.config, name)
        setattr(model.config, name, None)
        got, _ = packed(model, sequences_of(views, advantages, 400), "reinforce", {})
        setattr(model.config, name, original)
        assert abs(got - expected) > 1e-4


STATEFUL: dict[str, dict[str, Any]] = {
    "Mamba": {"vocab_size": 40, "hidden_size": 16, "state_size": 4},
    "Jamba": {
        **SIZES, "attn_layer_period": 2, "attn_layer_offset": 1,
        "num_experts": 1, "num_experts_per_tok": 1,
        "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False,
    },
    "Qwen3Next": {
        **SIZES, "layer_types": ["linear_attention", "full_attention"], "head_dim": 8,
        "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
}  # fmt: skip


def recurrent(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**STATEFUL[name], num_hidden_layers=2)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    model.set_attn_implementation = lambda _name: None  # it keeps its own
    return model


@pytest.mark.parametrize("name", ["Mamba", "Jamba", "Qwen3Next"])
def test_models_with_a_state_are_trained_flat(
    name: str, forest: Any, caplog: pytest.LogCaptureFixture
) -> None:
    views, advantages = forest_of(forest, 11)
    model = recurrent(name)
    expected, flat = flat_loss(model, views, advantages, "reinforce", {})
    model = prepare(model)
    assert f"model type {model.config.model_type!r}" in caplog.text
    assert "each path is trained as a row of its own" in caplog.text
    budget = models.budget(model, 400)
    sequences = sequences_of(views, advantages, budget)
    assert budget == 0
    assert all(len(sequence.mask_P_T) == 1 for sequence in sequences)
    got, grads = packed(model, sequences, "reinforce", {}, dtype=torch.float32)
    assert got == pytest.approx(expected, abs=1e-4)
    assert difference(flat, grads) < 1e-3
    with pytest.raises(NotReady, match=r"trained flat, and a row holds \d+ paths"):
        models.forward(model, sequences_of(views, advantages, 400)[0])


def test_pairs_are_refused_where_paths_are_rows() -> None:
    with pytest.raises(
        NotReady, match="loss 'dpo' takes pairs, and model type 'mamba' is trained flat"
    ):
        Trainer(
            prepare(recurrent("Mamba")), Optimise(loss="dpo"), frozen=prepare(recurrent("Mamba"))
        )


def kept_by(model: Any, sequence: packing.PackedSequence) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    stored: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        original = tensor.untyped_storage()
        if original.data_ptr() not in weights:
            stored[original.data_ptr()] = original.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        models.forward(model, sequence)
    return sum(stored.values())


def test_recomputed_layers_give_the_same_gradients_with_less_memory(forest: Any) -> None:
    views, advantages = forest_of(forest, 11)
    sequences = sequences_of(views, advantages, 400)

    def trained(recompute: bool) -> tuple[float, list[torch.Tensor], int]:
        trainer = Trainer(
            prepare(tiny("Gemma3")), Optimise(recompute=recompute, clip_norm=1e9), torch.float64
        )
        trainer._update = lambda rate: None  # type: ignore[method-assign]
        loss = trainer.step(sequences, 0).loss
        return (
            loss,
            [g.clone() for g in trainer.masters.gradients()],
            kept_by(trainer.model, sequences[0]),
        )

    plain, recomputed = trained(False), trained(True)
    assert plain[0] == recomputed[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], recomputed[1], strict=True))
    assert recomputed[2] < plain[2] / 2


def test_a_model_that_cannot_recompute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = prepare(tiny("Llama"))
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(NotReady, match=r"optimise\.recompute: model type 'llama' cannot do that"):
        models.recompute(model)
