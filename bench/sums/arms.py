"""The arms of the experiment `sums`: independent samples, the quick start's trees, and those that
answer for the bars of `trees`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from banyan.recipe import Recipe
from bench.trees.arms import Setting

MODEL = "SmolLM2-135M-Instruct"
HELD_OUT = 215  # rows of the share below
TOKENS = 24


@dataclass(frozen=True)
class Arm:
    """A way to grow a prompt's leaves, with its estimator.

    generate: part of the recipe, from the number of leaves
    advantage: estimator
    """

    name: str
    generate: Callable[[int], Mapping[str, Any]]
    advantage: str


def iid(leaves: int) -> Mapping[str, Any]:
    """Grow independent samples."""
    return {"policy": "iid", "settings": {"width": leaves}}


def forks(leaves: int) -> Mapping[str, Any]:
    """Grow a tree that forks in two at fixed places, as in the quick start."""
    levels = (leaves - 1).bit_length()
    settings = {"width": leaves, "segment": TOKENS // (levels + 1), "max_depth": levels + 1}
    return {"policy": "treepo-eager", "settings": settings}


def likely_forks(leaves: int) -> Mapping[str, Any]:
    """Grow chains, each forked three times where its own token was least likely."""
    settings = {"chains": leaves // 4, "forks": 3, "rounds": 1, "continuations": 1}
    return {"policy": "eptree", "settings": settings}


ARMS = {
    arm.name: arm
    for arm in (
        Arm("iid-grpo", iid, "grpo"),
        Arm("forks-rose", forks, "rose"),
        Arm("forks-grpo", forks, "grpo"),
        Arm("eptree", likely_forks, "treerl"),
    )
}


def recipe(arm: Arm, setting: Setting, seed: int) -> Recipe:
    """Return the recipe of an arm: all sums of three numbers from 2 to 9, with a worked example."""
    return Recipe.model_validate(
        {
            "name": arm.name,
            "model": MODEL,
            "task": {
                "name": "chains",
                "size": 511,
                "config": {"terms": 3, "examples": 1},
                "holdout": 0.42,
            },
            "generate": {"max_new_tokens": TOKENS, **arm.generate(setting.leaves)},
            "filter": [{"name": "number", "settings": {"take": "last"}}],
            "control": {"groups_per_batch": setting.groups},
            "optimise": {
                "advantage": arm.advantage,
                "loss": "reinforce",
                "learning_rate": setting.rate,
                "tokens_per_row": 4096,
            },
            "eval": {"max_rows": HELD_OUT},
            "resources": {"max_branches": 128, "kv_tokens": 1 << 15},
            "seed": seed,
        }
    )
