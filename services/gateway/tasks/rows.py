"""The rows of a task.

A row is plain JSON data: the input of scorers, and the content of its digest.
"""

from pathlib import Path
from typing import Any

from banyan.recipe import Task
from services.gateway.tasks import arithmetic, chains, chains_mod, file, products, reasoning_gym


def load(task: Task, base: Path) -> list[dict[str, Any]]:
    """Return the task's rows, in the same order every time. `base`: the folder of relative paths.

    It blocks (files, generators), so call it in a thread. Raise InvalidInput that names the row or
    setting, and its value.
    """
    if task.name == "arithmetic":
        return arithmetic.rows()
    if task.name == "chains":
        return chains.rows(task)
    if task.name == "chains-mod":
        return chains_mod.rows(task)
    if task.name == "products":
        return products.rows(task.size, task.seed)
    if task.name == "reasoning-gym":
        return reasoning_gym.rows(task)
    return file.rows(task, base)
