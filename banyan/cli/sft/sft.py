"""`banyan sft`: a short supervised warm start of a recipe's model, from rows or a stored run."""

import math
import os
from pathlib import Path

from banyan.cli import recipes
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit
from banyan.cli.sft import options as o
from banyan.cli.train.file_locations import located
from banyan.errors import InvalidInput
from banyan.runtime import torch_environment


def sft(
    recipe: o.RecipeName,
    to: o.To,
    rows: o.Rows = None,
    from_run: o.FromRun = "",
    at_least: o.AtLeast = 1.0,
    epochs: o.Epochs = 1,
    steps: o.Steps = None,
    learning_rate: o.Rate = None,
    batch_tokens: o.BatchTokens = 4096,
    seed: o.Seed = None,
    holdout: o.HoldOut = 0.1,
    lora: o.LoraRank = None,
    force: o.Force = False,
    overrides: o.Overrides = None,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Train a recipe's model on examples (supervised), and write a Hugging Face folder.

    The loss is on the assistant's turns alone. `banyan train RECIPE --set model=FOLDER` goes on
    from the folder.
    """
    _check_source(rows, from_run)
    rate = learning_rate if learning_rate is not None else o.LORA_RATE if lora else o.FULL_RATE
    _check_numbers(rate, at_least)
    torch_environment.settle(os.environ)  # before torch
    from services.learner.sft import output

    output.refuse_existing(to, force)
    file = recipes.find(recipe)
    read = located(recipes.read(recipe, overrides or ()), file)
    settings = o.Settings(
        epochs=epochs,
        steps=steps,
        learning_rate=rate,
        batch_tokens=batch_tokens,
        seed=read.seed if seed is None else seed,
        holdout=holdout,
        lora=lora,
    )
    from banyan.cli.sft import source, work

    material = source.FromRows(rows) if rows else source.FromRun(state, from_run, at_least)
    record = work.run(read, material, settings, to, force=force)
    emit(record if as_json else work.shown(record, to), as_json)


def _check_source(rows: Path | None, from_run: str) -> None:
    if (rows is None) == (not from_run):
        raise InvalidInput(
            "name what to learn from: either --rows FILE, or --from RUN for the successful paths "
            "of a stored run"
        )


def _check_numbers(rate: float, least: float) -> None:
    if not 0 < rate <= 1:
        raise InvalidInput(f"--learning-rate {rate:g} must be above 0 and at most 1")
    if not math.isfinite(least):
        raise InvalidInput(f"--at-least {least:g} must be a finite reward")
