"""Trial of a user's scorers before a run is begun, so that errors in them show at once."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from banyan.cli.render.console import err
from banyan.cli.train import search_path
from banyan.environments.cut import cut
from banyan.environments.hosting import Hosting
from banyan.recipe import Environment, Filter, Recipe, Task


def check(
    recipe: Recipe, folders: Sequence[Path], *, called: bool = False, shown: bool = False
) -> None:
    """Load each `module:function` or class in a child process that finds modules in `folders`.

    called: call it once, too, on a sample completion of the first row; Banyan's own scorers on
        rows of a file likewise
    shown: an environment's answer to an empty action is printed

    Raises InvalidInput, also if this machine cannot confine a scorer and the recipe forbids that,
    or its verifier will not give what a scorer asks for.
    """
    scorers = [
        *(recipe.filter or [Filter(name=name) for name in recipe.scorers]),
        *recipe.eval.filter,
    ]
    _check_allowed(recipe, scorers)
    own = [scorer for scorer in scorers if ":" in scorer.name]
    hosting = recipe.environment.hosting if recipe.environment else None
    if hosting is not None:
        hosting = replace(hosting, deterministic=recipe.deterministic)
    rows_are_yours = called and recipe.task.name == "file"
    if not own and not hosting and not rows_are_yours:
        return
    from services.verifier.preview.probe import check_own, probe

    row = first_row(recipe.task) if called or hosting or recipe.task.name == "file" else None
    if rows_are_yours and row is not None:
        check_own(scorers, row)
    with search_path.searched(folders):  # the child inherits the path
        if recipe.environment is not None and hosting is not None:
            _try_environment(recipe.environment, hosting, row or {}, shown=shown)
        for scorer in own:
            asyncio.run(
                probe(
                    scorer.name,
                    scorer.settings,
                    row,
                    group=scorer.group,
                    unconfined=recipe.allow_unconfined_scorers,
                    called=called,
                    secrets=scorer.secrets,
                    network=scorer.network,
                )
            )


def _try_environment(
    part: Environment, hosting: Hosting, row: Mapping[str, Any], *, shown: bool
) -> None:
    from services.verifier.preview import environment_trial

    trial = asyncio.run(environment_trial.tried(part.name, part.settings, hosting, row, part.turns))
    if shown and trial.answer is not None:
        said = cut(" ".join(trial.answer.text.split()), 200) or "nothing"
        err.print(
            f"environment {part.name} answers an empty action: {said}", markup=False, soft_wrap=True
        )


def _check_allowed(recipe: Recipe, scorers: Sequence[Filter]) -> None:
    """Raise InvalidInput if this machine's verifier will not give what a scorer asks for."""
    from services.verifier.preview.probe import (
        check_ceilings,
        check_confinement,
        check_grants,
        check_jail,
    )
    from services.verifier.store import spec_of

    check_ceilings(spec_of(recipe, scorer) for scorer in scorers)
    if not recipe.allow_unconfined_scorers:
        check_confinement(scorer.name for scorer in scorers)
    check_grants(scorers)
    asyncio.run(check_jail(scorer.name for scorer in scorers))


def first_row(task: Task) -> dict[str, Any] | None:
    """Return the first row of a task; of a generator's rows no more than two are made."""
    from services.gateway import tasks
    from services.gateway.tasks import file

    if task.name == "file":
        return file.first(task, Path.cwd())
    return tasks.load(task.model_copy(update={"size": 2}), Path.cwd())[0]
