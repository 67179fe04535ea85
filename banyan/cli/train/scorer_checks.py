"""Trial of a user's scorers before a run is begun, so that errors in them show at once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from banyan.cli.train import search_path
from banyan.recipe import Filter, Recipe


def check(recipe: Recipe, folders: Sequence[Path]) -> None:
    """Load each `module:function` in a child process that finds modules in `folders`.

    Raises InvalidInput, also if this machine cannot confine a scorer and the recipe forbids that.
    """
    from services.verifier.probe import check_confinement, check_jail, probe

    named = list(recipe.filter) or [Filter(name=name) for name in recipe.scorers]
    if not recipe.allow_unconfined_scorers:
        check_confinement(scorer.name for scorer in (*named, *recipe.eval.filter))
    asyncio.run(check_jail(scorer.name for scorer in (*named, *recipe.eval.filter)))
    own = [scorer for scorer in (*named, *recipe.eval.filter) if ":" in scorer.name]
    if not own:
        return
    from services.gateway.tasks import file

    row = file.first(recipe.task, Path.cwd()) if recipe.task.name == "file" else None
    with search_path.searched(folders):  # the child inherits the path
        for scorer in own:
            allowed = recipe.allow_unconfined_scorers
            asyncio.run(
                probe(scorer.name, scorer.settings, row, group=scorer.group, unconfined=allowed)
            )
