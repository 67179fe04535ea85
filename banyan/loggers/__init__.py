"""Destinations of a run's metrics, and of samples of its completions, beside the store.

A logger is a dataclass whose fields are its settings, of the entry-point group `banyan.loggers` or
module:attribute. It runs in a thread of its own in the learner; nothing waits for it, and no error
of it ends a run. tags.py groups the names of metrics; completions.py is what a logger of samples
has beside `Logger`.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from banyan import registry
from banyan.errors import InvalidInput
from banyan.loggers import completions
from banyan.loggers.tags import CHOICES, PLAIN
from banyan.recipe import Recipe


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """Run that a logger writes about.

    run_id: id of the run
    recipe: the recipe as plain data
    folder: the logger's own folder, kept with the run
    last: newest step that it has logged, -1 for none; the step before it if a learner was killed
        between logging and recording it
    tags: names of its metrics, `plain` or `grouped` (tags.py): those that its log began with, else
        the logger's setting `tags`, else `plain`
    """

    run_id: str
    recipe: Mapping[str, Any]
    folder: Path
    last: int
    tags: str = PLAIN


class Logger(Protocol):
    """Logger of a run. It may raise anything.

    One that takes samples of completions is a `completions.CompletionsLogger`, too. `PACKAGE`, if
    present, is the module that it imports and the requirement for pip.
    """

    def begin(self, run: LoggedRun) -> int:
        """Continue the run's log, or begin it.

        Returns the newest step that the log holds, or `run.last` if unknown.
        """
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record finite numbers of a step, by name. They are durable once this returns."""
        ...

    def close(self) -> None:
        """Close the log. The learner ends; the run may go on under another."""
        ...


def built(recipe: Recipe) -> dict[str, Logger]:
    """Return the loggers of a recipe by name.

    Raises InvalidInput for an unknown one, or bad settings.
    """
    return {
        n: registry.build("loggers", n, recipe.logging.settings.get(n, {}))
        for n in recipe.logging.loggers
    }


def check(recipe: Recipe) -> None:
    """Raise InvalidInput, with the package to install, for a logger that cannot be used here."""
    for name, logger in built(recipe).items():
        missing = [
            verb for verb in ("begin", "log", "close") if not callable(getattr(logger, verb, None))
        ]
        if missing:
            raise InvalidInput(
                f"logging.loggers: {name} is no logger: it has no method `{missing[0]}`"
            )
        module, requirement = getattr(logger, "PACKAGE", ("", ""))
        if module and importlib.util.find_spec(module) is None:
            raise InvalidInput(
                f"logging.loggers: {name} needs {module}, which is not installed here: pip install "
                f"{requirement}"
            )
        choice = getattr(logger, "tags", PLAIN)
        if choice not in CHOICES:
            raise InvalidInput(
                f"logging.settings.{name}.tags is {choice!r}; it is one of {', '.join(CHOICES)}"
            )
        completions.wish_of(name, logger)
