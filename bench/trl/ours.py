"""Our side: the quick start through all five services, in new processes."""

import itertools
from statistics import fmean
from typing import Any

from banyan.recipe import Recipe
from banyan.recipe_file import load
from bench import through
from bench.compared import RECIPE
from bench.trl.mapping import CHANGES

_TIMES = ("prepare_seconds", "train_seconds", "publish_seconds")


def recipe(*changes: str) -> Recipe:
    """The quick start as it is compared."""
    return load(RECIPE, [*CHANGES, *changes])


def short(steps: int, reward: str) -> dict[str, Any]:
    """A few steps, hardly evaluated."""
    changes = [f"budget.steps={steps}", "eval.samples=0", "eval.max_rows=2"]
    if reward == "varied":
        changes.append("optimise.advantage=bench.trl.estimator:Varied")
    return _run(recipe(*changes))


def learn(seed: int, every: int) -> dict[str, Any]:
    """The whole quick start, measured every so many steps."""
    return _run(recipe(f"seed={seed}", "eval.samples=0", f"eval.every={every}"))


def _run(wanted: Recipe) -> dict[str, Any]:
    curve = through.run(wanted)
    return {
        "seconds": curve.seconds,
        "tokens": [b - a for a, b in itertools.pairwise(curve.tokens)],
        "accuracy": dict(curve.accuracy),
        "rewards": [m.get("reward", 0.0) for m in curve.metrics],
        "skipped": fmean(m["groups_skipped"] for m in curve.metrics),
        "trained": [m["trained_path_tokens"] for m in curve.metrics],
        "of_it": {name: [m.get(name, 0.0) for m in curve.metrics] for name in _TIMES},
    }
