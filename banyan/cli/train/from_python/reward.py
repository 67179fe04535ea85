"""The scorer of a recipe for a reward that was passed as a Python function."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from banyan.cli.train.from_python.carried import Copy, folder_of, module_of
from banyan.errors import InvalidInput

Reward = Callable[..., Any] | str


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scorer of a recipe.

    entry: entry of the recipe's `filter`
    folders: folders in which verifiers find its code
    """

    entry: dict[str, Any]
    folders: tuple[Path, ...] = ()


def scorer_of(reward: Reward, code: Path) -> Scorer:
    """Return the scorer of a reward.

    reward: function of a module, of a script or of a notebook's cell; or the name of a scorer, or
        module:function
    code: folder where the copy of a script's or notebook's function is written

    Raises InvalidInput for what no verifier's process could import.
    """
    if isinstance(reward, str):
        return Scorer({"name": reward})
    function = inspect.unwrap(reward) if callable(reward) else reward
    if not inspect.isfunction(function):
        raise InvalidInput(
            f"reward is {type(reward).__name__} {reward!r:.80}, and must be a function"
            " `def reward(completion, **row) -> float`, a scorer's name or 'module:function'"
        )
    entry: dict[str, Any] = {"group": True} if _scores_groups(function) else {}
    if place := module_of(reward):
        folder = folder_of(place[0])
        return Scorer(entry | {"name": ":".join(place)}, (folder,) if folder else ())
    if function.__name__ == "<lambda>":
        raise InvalidInput("reward is a lambda, which has no name: make it a function with `def`")
    copy = Copy(function)
    _write(code / f"{copy.module}.py", copy.source)
    folders = (code.resolve(), *copy.folders)
    return Scorer(entry | {"name": f"{copy.module}:{function.__name__}"}, folders)


def _scores_groups(function: Callable[..., Any]) -> bool:
    """Return whether a function is of TRL's form: all completions of a prompt at once."""
    names = inspect.signature(function).parameters
    return "completions" in names and "completion" not in names


def _write(path: Path, source: str) -> None:
    """Write a module whose name is that of its content; another of that name is the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(source, encoding="utf-8")
    partial.replace(path)
