"""The work of `banyan sft`: read, load, train, write; and the record of it."""

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.cli.render.console import err
from banyan.cli.sft.interrupt import between_steps
from banyan.cli.sft.options import Settings
from banyan.cli.sft.source import Source
from banyan.digest import blake, canonical
from banyan.errors import InvalidInput
from banyan.recipe import Lora, Recipe
from banyan.runtime.distribution import installed_version

if TYPE_CHECKING:
    from services.learner.packing.unroll import TreePart
    from services.learner.sft.examples import Example
    from services.learner.sft.warm_start import Losses

FORMAT = "banyan.sft.v1"
_LINES = 10  # of progress


def run(
    recipe: Recipe, source: Source, settings: Settings, to: Path, *, force: bool
) -> dict[str, Any]:
    """Train the recipe's model on a source and write it to a folder; return the record."""
    from services.chassis import models
    from services.learner.sft import batches, examples, output, warm_start

    base = models.resolve(recipe.model, tokenizer=True)
    source.read(recipe, base)
    threads = None if recipe.resources.threads == "auto" else recipe.resources.threads
    model, dtype = warm_start.load(base, recipe.resources, threads, recipe.deterministic)
    budget = warm_start.budget(model, recipe.optimise)
    found = source.examples(recipe, base, model, budget)
    examples.refuse_long(found, context_of(model))
    train, held = batches.split(found, settings.holdout)
    parts, held_parts = examples.parts_of(train), examples.parts_of(held)
    if not parts:
        raise InvalidInput("nothing of this is trained: no token of the model's own is in it")
    planned = batches.batches(
        parts, settings.batch_tokens, settings.seed, epochs=settings.epochs, steps=settings.steps
    )
    trainer = warm_start.trainer_of(
        model,
        recipe.optimise,
        dtype,
        steps=len(planned),
        learning_rate=settings.learning_rate,
        adapter=adapter(settings),
        seed=settings.seed,
    )
    with between_steps(progress(len(planned))) as on_step:
        losses = warm_start.teach(trainer, planned, held_parts or parts, on_step)
    weights = warm_start.weights(trainer, base)
    record = {
        **identity(recipe, base),
        "source": source.facts(),
        "objective": warm_start.objective(recipe.optimise)[0],
        "settings": settings.facts() | {"dtype": str(dtype).removeprefix("torch.")},
        **sizes(train, held, planned),
        "loss": loss_facts(losses, measured="held-out" if held_parts else "training"),
        "versions": versions(),
    }
    output.write(to, base, weights, record, leaves=source.leaves(), force=force)
    return record


def context_of(model: Any) -> int:
    """Return the tokens that the model's context holds; 0 for no limit."""
    from services.rollout.engines.torch_engine import loading

    return loading.context(model)


def adapter(settings: Settings) -> Lora | None:
    """Return the adapter to train, if any."""
    return Lora(rank=settings.lora, alpha=2.0 * settings.lora) if settings.lora else None


def progress(steps: int) -> Callable[[int, float], None]:
    """Return a function that prints the loss of some steps."""
    every = max(1, steps // _LINES)

    def on_step(step: int, loss: float) -> None:
        if step == 1 or step % every == 0 or step == steps:
            err.print(f"step {step} of {steps}: loss {loss:.4f}")

    return on_step


def identity(recipe: Recipe, base: Path) -> dict[str, Any]:
    """Return the recipe and the model that were trained."""
    from services.learner.model.lora import BaseModel

    digest = blake(canonical(recipe.model_dump(mode="json"))).hex()
    return {
        "format": FORMAT,
        "recipe": {"name": recipe.name, "digest": digest},
        "model": {"name": recipe.model, "digest": BaseModel.of(base, recipe.model).digest},
    }


def sizes(
    train: Sequence["Example"], held: Sequence["Example"], planned: Sequence[Sequence["TreePart"]]
) -> dict[str, Any]:
    """Return the counts of what was trained on, and held out."""
    from services.learner.sft import examples

    parts, held_parts = examples.parts_of(train), examples.parts_of(held)
    return {
        "steps": len(planned),
        "examples": {"trained": len(train), "held_out": len(held)},
        "trained_tokens": examples.trained_tokens(parts),
        "unique_tokens": sum(map(len, parts)),
        "held_out_tokens": examples.trained_tokens(held_parts),
    }


def loss_facts(losses: "Losses", measured: str) -> dict[str, Any]:
    """Return the losses, in nats per trained token.

    measured: name of the examples that were measured
    """
    first, last = losses.by_step[0], losses.by_step[-1]
    measures = {"before": losses.before, "after": losses.after, "measured_on": measured}
    return measures | {"first_step": first, "last_step": last}


def versions() -> dict[str, str]:
    """Return the versions that computed it."""
    computed = {name: version(name) for name in ("torch", "transformers")}
    ours = {"banyan": installed_version()}
    return ours | computed | {"python": platform.python_version()}


def shown(record: dict[str, Any], to: Path) -> dict[str, Any]:
    """Return what a person reads."""
    loss, counts = record["loss"], record["examples"]
    return {
        "folder": str(to.resolve()),
        "steps": record["steps"],
        "examples": f"{counts['trained']} trained, {counts['held_out']} held out",
        f"{loss['measured_on']} loss": f"{loss['before']:.4f} before, {loss['after']:.4f} after",
    }
