"""Rows made by a generator of reasoning-gym: offline, and the same for the same seed and settings.

A row holds the data that its scorer needs: {"dataset", "config", "question", "answer", "metadata"}.
Answers are scored by the verifier in a child process; nothing here runs a scorer.
"""

import json
from fractions import Fraction
from typing import Any

from banyan.errors import InvalidInput
from banyan.recipe import Task
from banyan.runtime.distribution import install
from services.gateway.tasks.size import check_size

# Generators that cannot be a task, and why.
REFUSED = {
    "composite": "it only mixes other generators; name one of them",
    "list_functions": "it draws from a global generator, so that the same seed gives other rows",
}


def rows(task: Task) -> list[dict[str, Any]]:
    """Return `task.size` rows.

    Raise InvalidInput for an unknown generator or a setting that it does not take.
    """
    if task.dataset in REFUSED:
        raise InvalidInput(f"task.dataset {task.dataset!r} cannot be used: {REFUSED[task.dataset]}")
    entries = _generator(task)
    return [_row(task, entries[index], index) for index in range(task.size)]


def _generator(task: Task) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise InvalidInput(f"task reasoning-gym needs its package; {install('gateway')}") from None
    if task.dataset not in DATASETS:
        raise InvalidInput(
            f"reasoning-gym has no generator {task.dataset!r}; it has {', '.join(sorted(DATASETS))}"
        )
    if {"seed", "size"} & set(task.config):
        raise InvalidInput("task.config may not hold seed or size; set task.seed and task.size")
    try:
        return reasoning_gym.create_dataset(
            task.dataset, size=task.size, seed=task.seed, **task.config
        )
    except (AssertionError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"task.config {task.config} does not suit reasoning-gym {task.dataset!r}: {error}"
        ) from None


def _row(task: Task, entry: dict[str, Any], index: int) -> dict[str, Any]:
    parts = {"dataset": task.dataset, "config": task.config}
    kept = {key: entry[key] for key in ("question", "answer", "metadata")}
    try:
        text = json.dumps({**parts, **kept}, allow_nan=False, default=_plain)
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"reasoning-gym {task.dataset!r}: row {index} has no form in JSON: {error}"
        ) from None
    check_size(plain, f"reasoning-gym {task.dataset!r}: row {index}")
    return plain


def _plain(value: object) -> str:
    """Return a fraction as text, as in the numbers of gsm_symbolic, which no scorer reads."""
    if isinstance(value, Fraction):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
