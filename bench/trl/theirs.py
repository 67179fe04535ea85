"""TRL's side: a job for the rival in its own environment, and the accuracy of its policies."""

import tempfile
from pathlib import Path
from typing import Any

from banyan.recipe import Recipe
from banyan.runtime import torch_environment
from bench.trl import mapping, rivals
from bench.trl.environment import python
from bench.trl.mapping import Variant
from bench.trl.rivals import Report
from methods.control.uniform import row_of
from services.chassis import models
from services.gateway import tasks


def rows(recipe: Recipe, steps: int) -> list[dict[str, Any]]:
    """Return the prompts of so many steps of our run, in its order."""
    train = tasks.split(tasks.load(recipe.task, Path()), recipe.task).train
    taken = [
        train[row_of(len(train), recipe.seed, i)]
        for i in range(steps * recipe.control.groups_per_batch)
    ]
    return [{"prompt": tasks.messages(row, recipe.task), "answer": row["answer"]} for row in taken]


def job(recipe: Recipe, variant: Variant, steps: int, reward: str) -> dict[str, Any]:
    """Return the job of the rival, which stores no policies."""
    return {
        "model": str(models.resolve(recipe.model, tokenizer=True)),
        "rows": rows(recipe, steps),
        "arguments": mapping.arguments(recipe, variant, steps),
        "scorer": recipe.filter[0].settings,
        "reward": reward,
        "keep": "",
        "every": 1,
        "environment": sorted([*torch_environment.SETTINGS, "OMP_PROC_BIND"]),
    }


def run(recipe: Recipe, variant: Variant, steps: int, reward: str) -> Report:
    """Return seconds of each step, and the rival's report."""
    with tempfile.TemporaryDirectory() as folder:
        return _reported(recipe, job(recipe, variant, steps, reward), folder)


def learn(recipe: Recipe, variant: Variant, steps: int, every: int) -> Report:
    """Return the same, and the held-out greedy accuracy of every so-many-th policy.

    Our own engine measures it afterwards.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        request = job(recipe, variant, steps, "task") | {"keep": folder, "every": every}
        said = _reported(recipe, request, folder)
        from bench.trl import accuracy

        return said | accuracy.of_files(recipe, Path(folder))


def _reported(recipe: Recipe, request: dict[str, Any], folder: str) -> Report:
    command = [str(python()), "-m", "bench.trl.rival"]
    return rivals.report(recipe, request | {"scratch": f"{folder}/trl"}, command, "TRL")
