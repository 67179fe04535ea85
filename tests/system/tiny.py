"""A run with real weights on a tiny random model: its tokenizer, rows, reward and recipe."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.faults.harness import recipe, tiny_model


def byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer with one token per byte, and one that ends."""
    ids = {c: i for i, c in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"])}
    inner = Tokenizer(models.BPE(vocab=ids, merges=[]))
    inner.pre_tokenizer, inner.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>").save_pretrained(folder)


def torch_recipe(folder: Path) -> dict[str, Any]:
    """Write a run with real weights, long enough for a slow node; rewards differ by chance."""
    folder.mkdir(parents=True)
    (folder / "any_reward.py").write_text(
        "def reward(completion, **row):\n    return sum(map(ord, completion)) % 7 / 6\n"
    )
    (folder / "rows.jsonl").write_text("".join(f'{{"prompt": "say {n}"}}\n' for n in range(40)))
    byte_tokenizer(tiny_model(folder / "model", vocab=257))
    return recipe(
        folder / "model",
        name="weights",
        task={"name": "file", "path": "rows.jsonl", "reward": "any_reward:reward", "holdout": 0.0},
        resources={
            "engine": "torch",
            "threads": 1,
            "kv_tokens": 4096,
            "max_branches": 8,
            "dtype": "float32",
        },
        budget={"steps": 2000, "minutes": 10.0},
    )
