"""Where the metrics of a run go beside the store: loggers by name, and whether a recipe's can be used here.

A logger is a dataclass whose fields are its settings: of the entry-point group `banyan.loggers`, or module:attribute.
It runs in a thread of its own in the learner; nothing waits for it, and nothing that it raises ends a run.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from banyan import registry
from banyan.errors import InvalidInput
from banyan.recipe import Recipe


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a logger is told of its run. folder: its own, kept with the run. last: newest step that it took, -1 for none;
    where a learner was killed between taking and noting it, the step before."""

    run_id: str
    recipe: Mapping[str, Any]
    folder: Path
    last: int


class Logger(Protocol):
    """`PACKAGE`, if it has one: the module that it imports, and what to ask pip for. It may raise anything."""

    def begin(self, run: LoggedRun) -> int:
        """Goes on with the run's log, or begins it. The newest step that the log holds; `run.last` if it cannot tell."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes finite numbers of a step, by name. They are kept once this returns."""
        ...

    def close(self) -> None:
        """The learner ends; the run may go on under another."""
        ...


def built(recipe: Recipe) -> dict[str, Logger]:
    """The loggers of a recipe by name. Raises InvalidInput for one that is not there, or whose settings are bad."""
    return {
        n: registry.build("loggers", n, recipe.logging.settings.get(n, {}))
        for n in recipe.logging.loggers
    }


def check(recipe: Recipe) -> None:
    """Raises InvalidInput, with what to install, for a logger that cannot be used here."""
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
                f"logging.loggers: {name} needs {module}, which is not installed here: pip install {requirement}"
            )
