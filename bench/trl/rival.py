"""TRL's GRPOTrainer on one job, in .venv-trl: `python -m bench.trl.rival JOB.json OUT.json`.

The job names the model folder, the rows with their messages in order, GRPOConfig's arguments and
the reward. The output has the seconds from the end of one optimizer step to the end of the next,
the samples of each step, the prompts that the model was given, TRL's resolved settings, and the
versions. If the job names a folder, policies are written there as bfloat16; the time for that is
subtracted. glibc keeps freed memory, as in our learner.
"""

import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from banyan.runtime import torch_environment
from bench.trl import reward
from bench.trl.seen import Seen
from methods.filter.number import Number

PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "numpy")


class Clock(TrainerCallback):
    """Callback that takes seconds from step to step, and stores policies without counting that
    time."""

    def __init__(self, folder: str, every: int) -> None:
        self.seconds: list[float] = []
        self._folder, self._every, self._last = folder, every, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the beginning of training."""
        self._last = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Note the end of an optimizer step."""
        self.seconds.append(time.perf_counter() - self._last)
        print(f"  TRL step {state.global_step}: {self.seconds[-1]:.2f} s", flush=True)
        if self._folder and state.global_step % self._every == 0:
            tensors = {
                n: p.detach().to(torch.bfloat16, copy=True) for n, p in model.named_parameters()
            }
            save_file(tensors, Path(self._folder) / f"step-{state.global_step}.safetensors")
        self._last = time.perf_counter()


class Reward:
    """Reward of a batch, group by group; it also counts the samples."""

    __name__ = "reward"

    def __init__(self, kind: str, settings: dict[str, Any], width: int) -> None:
        self._varied, self._scorer, self._width = kind == "varied", Number(**settings), width
        self.tokens: list[int] = []
        self.means: list[float] = []

    def __call__(
        self, completions: list[Any], completion_ids: list[list[int]], answer: list[Any], **_: Any
    ) -> list[float]:
        """Return one number an answer."""
        self.tokens.append(sum(len(ids) for ids in completion_ids))
        texts = [completion[0]["content"] for completion in completions]
        values = [self._one(text, right) for text, right in zip(texts, answer, strict=True)]
        if self._varied:
            values = reward.varied(self._width) * (len(texts) // self._width)
        self.means.append(sum(values) / len(values))
        return values

    def _one(self, text: str, answer: Any) -> float:
        return float(self._scorer.score(text, {"answer": answer}).value)  # type: ignore[union-attr]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the measurements."""
    keeps = torch_environment.keep_memory()
    arguments = job["arguments"]
    config = GRPOConfig(output_dir=job["scratch"], **arguments)
    clock = Clock(job["keep"], job["every"])
    scored = Reward(job["reward"], job["scorer"], arguments["num_generations"])
    rows = Dataset.from_list(job["rows"])
    trainer = GRPOTrainer(
        job["model"], reward_funcs=scored, args=config, train_dataset=rows, callbacks=[clock]
    )
    recorder = Seen(trainer.model, trainer.eos_token_ids)
    dtypes = sorted({str(p.dtype) for p in trainer.model.parameters()})
    trainer.train()
    recorder.check(config.generation_batch_size * arguments["max_steps"])
    return {
        "seconds": clock.seconds,
        "tokens": scored.tokens,
        "rewards": scored.means,
        "log": [line for line in trainer.state.log_history if "loss" in line],
        "prompts": recorder.prompts,
        "keeps_memory": keeps,
        "settings": {name: repr(getattr(config, name)) for name in arguments},
        "weights": dtypes,
        "threads": torch.get_num_threads(),
        "environment": {n: os.environ.get(n, "") for n in job["environment"]},
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES}
        | {"python": sys.version.split()[0]},
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
