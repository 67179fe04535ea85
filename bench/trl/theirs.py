"""TRL's side: a job for the rival, run in its own environment and process, and the accuracy of the policies it kept."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from banyan.recipe import Recipe
from banyan.runtime import torch_environment
from bench.trl import mapping, prompts
from bench.trl.environment import ROOT, python
from bench.trl.mapping import Variant
from methods.control.uniform import row_of
from services.chassis import models
from services.gateway import tasks


def rows(recipe: Recipe, steps: int) -> list[dict[str, Any]]:
    """The prompts of so many steps of our run, in its order."""
    train = tasks.split(tasks.load(recipe.task, Path()), recipe.task).train
    taken = [
        train[row_of(len(train), recipe.seed, i)]
        for i in range(steps * recipe.control.groups_per_batch)
    ]
    return [{"prompt": tasks.messages(row, recipe.task), "answer": row["answer"]} for row in taken]


def job(recipe: Recipe, variant: Variant, steps: int, reward: str) -> dict[str, Any]:
    """What the rival is told. Nothing is kept."""
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


def run(recipe: Recipe, variant: Variant, steps: int, reward: str) -> dict[str, Any]:
    """Seconds of each step, and what the rival says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        return _started(recipe, job(recipe, variant, steps, reward), Path(folder))


def learn(recipe: Recipe, variant: Variant, steps: int, every: int) -> dict[str, Any]:
    """The same, and the held-out greedy accuracy of every so-many-th policy, measured afterwards by our own engine."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        told = job(recipe, variant, steps, "task") | {"keep": folder, "every": every}
        said = _started(recipe, told, Path(folder))
        from bench.trl import accuracy

        return said | accuracy.of_files(recipe, Path(folder))


def _started(recipe: Recipe, told: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the rival says; its prompts are compared with ours, and told by their digest. Raises RuntimeError."""
    asked, answer = folder / "job.json", folder / "out.json"
    asked.write_text(json.dumps(told | {"scratch": str(folder / "trl")}))
    command = [str(python()), "-m", "bench.trl.rival", str(asked), str(answer)]
    subprocess.run(command, cwd=ROOT, env=_environ(), check=True, timeout=3600.0)
    said: dict[str, Any] = json.loads(answer.read_text())
    given = prompts.by_group(said.pop("prompts"), recipe.generate.settings["width"])
    prompts.compare(given, prompts.encoded(recipe, told["rows"]), "TRL")
    return said | {"prompts": prompts.digest(given), "prompts_given": len(given)}


def _environ() -> dict[str, str]:
    """As our own processes have it."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    torch_environment.settle(environ)
    torch_environment.bind(environ, len(torch_environment.CORES))
    return environ
