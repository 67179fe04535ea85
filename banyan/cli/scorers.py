"""A user's scorers, tried before a run is begun: one that is not there, or takes something else, is said at once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from banyan.cli import searchpath
from banyan.recipe import Filter, Recipe


def check(recipe: Recipe, folders: Sequence[Path]) -> None:
    """Loads each `module:function` in a child process that finds modules in `folders`. Raises InvalidInput."""
    named = list(recipe.filter) or [Filter(name=name) for name in recipe.scorers]
    own = [scorer for scorer in (*named, *recipe.eval.filter) if ":" in scorer.name]
    if not own:
        return
    from services.gateway.tasks import file
    from services.verifier.probe import probe

    row = file.first(recipe.task, Path.cwd()) if recipe.task.name == "file" else None
    with searchpath.searched(folders):  # the child is told
        for scorer in own:
            asyncio.run(probe(scorer.name, scorer.settings, row, group=scorer.group))
