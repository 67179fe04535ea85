"""The naive loop's side: a job for it in a process of its own, and the accuracy of its policies.

`python -m bench.trl.naive JOB.json OUT.json` runs a job. glibc keeps freed memory, as in our
learner. The time for writing policies counts for no step, as with TRL.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from banyan.recipe import Recipe
from banyan.runtime import torch_environment
from bench.rivals.naive import NaiveLoop
from bench.trl import rivals, theirs
from bench.trl.rivals import Report
from methods.filter.number import Number
from services.chassis import models
from services.learner.training.schedule import learning_rate


def learn(recipe: Recipe, steps: int, every: int) -> Report:
    """Return seconds of each step, and the held-out greedy accuracy of every so-many-th policy.

    Our own engine measures it afterwards.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        job = {
            "recipe": recipe.model_dump(mode="json"),
            "rows": theirs.rows(recipe, steps),
            "steps": steps,
            "keep": folder,
            "every": every,
            "scratch": f"{folder}/naive",
        }
        command = [sys.executable, "-m", "bench.trl.naive"]
        said = rivals.report(recipe, job, command, "the naive loop")
        from bench.trl import accuracy

        return said | accuracy.of_files(recipe, Path(folder))


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train, and return seconds, sampled tokens and mean rewards of each step, and prompts."""
    keeps = torch_environment.keep_memory()
    recipe = Recipe.model_validate(job["recipe"])
    width, groups = recipe.generate.settings["width"], recipe.control.groups_per_batch
    loop = NaiveLoop(
        models.resolve(recipe.model, tokenizer=True),
        recipe.optimise.learning_rate,
        width,
        recipe.generate.max_new_tokens,
    )
    scorer = Number(**recipe.filter[0].settings)
    said: dict[str, Any] = {"seconds": [], "tokens": [], "rewards": [], "prompts": []}
    for step in range(job["steps"]):
        rows = job["rows"][step * groups : (step + 1) * groups]
        begun = time.perf_counter()
        samples = loop.sample([row["prompt"] for row in rows])
        repeated = [row for row in rows for _ in range(width)]
        rewards = [
            _reward(scorer, text, row) for text, row in zip(samples.texts, repeated, strict=True)
        ]
        loop.set_rate(learning_rate(recipe.optimise, step))
        loop.train(samples, rewards)
        loop.refresh()
        said["seconds"].append(time.perf_counter() - begun)
        print(f"  naive step {step + 1}: {said['seconds'][-1]:.2f} s", flush=True)
        said["tokens"].append(int(samples.answer_B_T.sum()))
        said["rewards"].append(sum(rewards) / len(rewards))
        said["prompts"] += samples.prompts()
        if (step + 1) % job["every"] == 0:
            _write(loop, Path(job["keep"]) / f"step-{step + 1}.safetensors")
    return said | {"keeps_memory": keeps, "threads": torch.get_num_threads()}


def _reward(scorer: Number, text: str, row: dict[str, Any]) -> float:
    return float(scorer.score(text, {"answer": row["answer"]}).value)  # type: ignore[union-attr]


def _write(loop: NaiveLoop, path: Path) -> None:
    """Write the policy as it samples, in bfloat16."""
    tensors = {name: tensor.contiguous() for name, tensor in loop.sampler.named_parameters()}
    save_file(tensors, path)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
