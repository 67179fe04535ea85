"""Inputs of a run that this machine must have before anything starts."""

from pathlib import Path

from banyan.cli.render.console import err
from banyan.errors import InvalidInput
from banyan.recipe import Recipe, Task
from banyan.recipe.hub_dataset import is_hub_dataset


def check_listen(recipe: Recipe, listen: str) -> None:
    """Raise InvalidInput for an address of `--listen` that is none, or that no run could use."""
    if not listen:
        return
    from services.supervisor.embedded import address

    address(listen)
    if recipe.deterministic:
        raise InvalidInput(
            "--listen: the recipe is deterministic, so one node samples all of it; leave --listen "
            "out"
        )


def prepare(recipe: Recipe) -> None:
    """Find model and data set before anything starts: what is missing is one clear message."""
    from services.chassis import models
    from services.gateway.tasks import file

    check_machine(recipe)
    if is_of_hub(recipe.task):
        # Here it may take longer than a call of the gateway.
        file.first(recipe.task, Path.cwd())
    models.prepare(recipe.model, tokenizer=recipe.resources.engine == "torch")


def announce(task: Task) -> None:
    """Say that a data set of the hub is being read, which may take a while."""
    if is_of_hub(task):
        err.print(f"reading {task.path} …", markup=False, soft_wrap=True)


def is_of_hub(task: Task) -> bool:
    """Return whether a task's rows come from the Hugging Face hub."""
    return task.name == "file" and is_hub_dataset(task.path)


def check_machine(recipe: Recipe) -> None:
    """Check what this machine must have.

    Raises NotReady, with its installation, if vLLM is needed but missing; InvalidInput if
    accelerators are.
    """
    if recipe.resources.learner_device == "cuda":
        from services.learner.model import device

        device.choose("cuda", ranks=recipe.resources.learner_ranks)
    if recipe.resources.engine == "vllm":
        from services.rollout.engines.vllm_engine import installed

        installed.check()
