"""A rival's run of a recipe in a process of its own, and the accuracy of its policies."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from banyan.recipe import Recipe
from banyan.runtime import torch_environment
from bench.trl import prompts
from bench.trl.environment import ROOT

Report = dict[str, Any]
_DEADLINE_S = 3600.0


def report(recipe: Recipe, job: Mapping[str, Any], command: list[str], side: str) -> Report:
    """Return what the process writes about its job, with its prompts replaced by their digest.

    command: gets the paths of the job and of the report
    side: who it is, for errors

    Raises RuntimeError if its model was given other prompts than ours.
    """
    asked, answer = (Path(job["scratch"]) / name for name in ("job.json", "out.json"))
    asked.parent.mkdir(exist_ok=True)
    asked.write_text(json.dumps(job))
    subprocess.run(
        [*command, str(asked), str(answer)],
        cwd=ROOT,
        env=environ(),
        check=True,
        timeout=_DEADLINE_S,
    )
    said: Report = json.loads(answer.read_text())
    given = prompts.by_group(said.pop("prompts"), recipe.generate.settings["width"], side)
    prompts.compare(given, prompts.encoded(recipe, job["rows"]), side)
    return said | {"prompts": prompts.digest(given), "prompts_given": len(given)}


def environ() -> dict[str, str]:
    """Return the environment of our own processes."""
    made = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    torch_environment.settle(made)
    torch_environment.bind(made, len(torch_environment.CORES))
    return made
