"""Tiny random models of transformers' families, peaked enough that omissions show."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "initializer_range": 0.4, "pad_token_id": 0,
}  # fmt: skip
WIDE = {"head_dim": 16}  # not hidden / heads
OLD = {
    "vocab_size": VOCABULARY,
    "initializer_range": 0.4,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
}
MIXED = {**WIDE, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
LONG = {**MIXED, "sliding_window": 4096}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12, "n_group": 1, "num_key_value_heads": 4, "head_dim": 8,
    "n_routed_experts": 4, "first_k_dense_replace": 1, "topk_group": 1, **EXPERTS,
}  # fmt: skip
SCALED = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}

# By name of a case: the class before `ForCausalLM` and `Config`, and its settings.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", WIDE),
    "mistral": ("Mistral", {"sliding_window": 6}),
    "mistral-long": ("Mistral", {"sliding_window": 4096}),
    "ministral": ("Ministral", MIXED),
    "mixtral": ("Mixtral", EXPERTS),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", WIDE),
    "qwen3-moe": ("Qwen3Moe", {**WIDE, **EXPERTS}),
    "gemma": ("Gemma", WIDE),
    "gemma2": (
        "Gemma2",
        {
            **LONG,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 9,
        },
    ),
    "gemma3": ("Gemma3", LONG),
    "gemma4": (
        "Gemma4",
        {**MIXED, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8},
    ),
    "vaultgemma": ("VaultGemma", {**MIXED, "attn_logit_softcapping": 2.0}),
    "gpt-oss": ("GptOss", {**MIXED, **EXPERTS}),
    "cohere": ("Cohere", {"logit_scale": 0.25}),
    "cohere2": ("Cohere2", {**MIXED, "logit_scale": 0.25}),
    "granite": ("Granite", SCALED),
    "granite-moe": ("GraniteMoe", {**SCALED, **EXPERTS}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"sliding_window": 6}),
    "olmo": ("Olmo", {}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", MIXED),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "deepseek3": ("DeepseekV3", LATENT),
    "minicpm3": ("MiniCPM3", LATENT),
    "diffllama": ("DiffLlama", WIDE),
    "exaone4": ("Exaone4", MIXED),
    "glm4": ("Glm4", WIDE),
    "starcoder2": ("Starcoder2", {"sliding_window": 6}),
    "nemotron": ("Nemotron", {}),
    "stablelm": ("StableLm", {"num_key_value_heads": 4}),
    "doge": ("Doge", WIDE),
    "llama4": ("Llama4", {**EXPERTS, "intermediate_size_mlp": 48}),
    "mimo2": ("MiMoV2Flash", {**EXPERTS, "n_routed_experts": 4}),
    "minimax": ("MiniMax", {}),
    "falcon": ("Falcon", {"alibi": False}),
    "falcon-alibi": ("Falcon", {"alibi": True}),
    "bloom": ("Bloom", {"n_layer": 2, "n_head": 4}),
    "mpt": ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}),
    "gpt-neox": ("GPTNeoX", {}),
    "gpt-neo": (
        "GPTNeo",
        {
            "attention_types": [[["global", "local"], 1]],
            "num_layers": 2,
            "num_heads": 4,
            "window_size": 6,
        },
    ),
    "gpt-j": ("GPTJ", {**OLD, "rotary_dim": 4}),
    "gpt2": ("GPT2", OLD),
    "opt": ("OPT", {"word_embed_proj_dim": 32, "ffn_dim": 48}),
}
_NO_SIZES = {
    "Bloom": {"hidden_size", "vocab_size", "initializer_range", "pad_token_id"},
    "Mpt": {"vocab_size", "initializer_range"},
}
_NO_SIZES |= {
    "GPTNeo": set(SIZES) - {"num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
}
_NO_SIZES |= {"GPTJ": set(), "GPT2": set()}
_CONFIGS = dict.fromkeys(("Gemma3", "Gemma4", "Llama4"), "TextConfig")


def made(case: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return the model, with non-zero biases and sinks."""
    family, settings = FAMILIES[case]
    sizes = {name: SIZES[name] for name in _NO_SIZES.get(family, SIZES)}
    config = getattr(transformers, family + _CONFIGS.get(family, "Config"))(**{**sizes, **settings})
    torch.manual_seed(0)
    model = getattr(
        transformers, "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    )(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 and ("sink" in name or "bias" in name):
                weight.normal_()
    found: PreTrainedModel = model.to(dtype).eval().requires_grad_(False)
    return found
