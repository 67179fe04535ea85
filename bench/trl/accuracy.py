"""Held-out greedy accuracy of policies that lie as files, by the engine and the scorer that measure our own runs."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from banyan.recipe import Recipe
from bench.oneprocess import OneProcess
from services.rollout.engines.port import Policy


def of_files(recipe: Recipe, folder: Path) -> dict[int, float]:
    """Policy step → accuracy, for each step-N.safetensors."""
    process = OneProcess(recipe)
    named: Any = process.sampler
    found = {}
    for path in sorted(folder.glob("step-*.safetensors"), key=_step):
        tensors = load_file(path)
        with torch.no_grad():
            for name, target in named.named_parameters():
                target.copy_(tensors[name])
        process.engine.load(Policy(1, _step(path), _step(path).to_bytes(32, "big")), None)
        found[_step(path)] = process.accuracy(1, 0.0)
    return found


def prompts(recipe: Recipe, rows: list[dict[str, Any]]) -> str:
    """The digest of the token ids of all prompts, as our engine encodes them; TRL's must be the same."""
    import hashlib
    import json

    from services.chassis import models
    from services.rollout.engines import loading

    folder = models.resolve(recipe.model, tokenizer=True)
    tokenizer = loading.ChatTokenizer(folder, loading.load_model(folder, torch.bfloat16, torch.device("cpu")))
    ids = [[int(i) for i in tokenizer.encode_chat(row["prompt"])] for row in rows]
    return hashlib.blake2b(json.dumps(ids).encode(), digest_size=16).hexdigest()


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))
