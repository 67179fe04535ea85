"""Held-out greedy accuracy of policies in files, by the engine and the scorer of our own runs."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from bench.rivals.oneprocess import OneProcess


def of_files(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the accuracy by policy step, for each step-N.safetensors.

    held_out: rows that it is measured on
    """
    process = OneProcess(recipe)
    named: Any = process.sampler
    accuracy = {}
    for path in sorted(folder.glob("step-*.safetensors"), key=_step):
        tensors = load_file(path)
        with torch.no_grad():
            for name, target in named.named_parameters():
                target.copy_(tensors[name])
        process.engine.load(PolicyVersion(1, _step(path), _step(path).to_bytes(32, "big")), None)
        accuracy[_step(path)] = process.accuracy(1, 0.0)
    return {"accuracy": accuracy, "held_out": len(process.split.held_out)}


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))
