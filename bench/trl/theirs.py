"""TRL's side: a job for the rival in its own environment, and the accuracy of its policies."""

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


def run(recipe: Recipe, variant: Variant, steps: int, reward: str) -> dict[str, Any]:
    """Return seconds of each step, and the rival's report."""
    with tempfile.TemporaryDirectory() as folder:
        return _started(recipe, job(recipe, variant, steps, reward), Path(folder))


def learn(recipe: Recipe, variant: Variant, steps: int, every: int) -> dict[str, Any]:
    """Return the same, and the held-out greedy accuracy of every so-many-th policy.

    Our own engine measures it afterwards.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        request = job(recipe, variant, steps, "task") | {"keep": folder, "every": every}
        report = _started(recipe, request, Path(folder))
        from bench.trl import accuracy

        return report | accuracy.of_files(recipe, Path(folder))


def _started(recipe: Recipe, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the rival's report, with its prompts replaced by their digest.

    Raises RuntimeError if they differ from ours.
    """
    asked, answer = folder / "job.json", folder / "out.json"
    asked.write_text(json.dumps(request | {"scratch": str(folder / "trl")}))
    command = [str(python()), "-m", "bench.trl.rival", str(asked), str(answer)]
    subprocess.run(command, cwd=ROOT, env=_environ(), check=True, timeout=3600.0)
    report: dict[str, Any] = json.loads(answer.read_text())
    prompts_given = prompts.by_group(report.pop("prompts"), recipe.generate.settings["width"])
    prompts.compare(prompts_given, prompts.encoded(recipe, request["rows"]), "TRL")
    return report | {"prompts": prompts.digest(prompts_given), "prompts_given": len(prompts_given)}


def _environ() -> dict[str, str]:
    """Return the environment of our own processes."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    torch_environment.settle(environ)
    torch_environment.bind(environ, len(torch_environment.CORES))
    return environ
