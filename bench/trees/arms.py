"""The arms of the experiment `trees`: recipes, and the settings that each arm may be tuned over.

An arm is a tree policy with an estimator. Its shape is how the leaves of an update are dealt to
prompts, as groups × leaves; its rate is that of AdamW. Everything else is equal.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from banyan.facts import NO_FACTS, Facts
from banyan.recipe import Recipe
from banyan.tree import Tree
from bench.trees import policy
from bench.trees.stepwise import states

HELD_OUT, ROWS = 512, 20_512
STEP = 6  # letters of an operation
SHAPES = ((16, 8), (8, 16), (4, 32))
RATES = (1e-4, 2e-4, 4e-4)
WHOLE, LAST = "whole", "last"  # what must be right: the whole chain, or its last digit
_SCORERS: Mapping[str, Mapping[str, Any]] = {
    WHOLE: {"name": "exact"},
    LAST: {"name": "number", "settings": {"answer": "last", "take": "last"}},
}


@dataclass(frozen=True)
class Task:
    """What is asked: chains of so many operations, and what of an answer must be right."""

    operations: int = 16
    right: str = WHOLE

    @property
    def tokens(self) -> int:
        """Tokens of a whole answer without its end."""
        return STEP * self.operations


@dataclass(frozen=True)
class Setting:
    """What an arm is tuned over.

    groups: prompts of an update
    leaves: leaves of a prompt
    rate: AdamW's step size
    """

    groups: int
    leaves: int
    rate: float

    @property
    def name(self) -> str:
        """Name in a cell's name."""
        return f"{self.groups}x{self.leaves}@{self.rate:g}"


Generate = Callable[[Task, int], dict[str, Any]]


def no_facts(tree: Tree) -> Facts:
    """Return that nothing is known of a tree."""
    return NO_FACTS


@dataclass(frozen=True)
class Arm:
    """A way to grow leaves and to give them credit.

    generate: part of the recipe, from the task and the leaves of a prompt
    advantage: estimator
    advantage_settings: settings of it
    changes: parts of the recipe beside these
    facts: what is known of a tree beside its rewards
    """

    name: str
    generate: Generate
    advantage: str
    advantage_settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Callable[[Tree], Facts] = no_facts
    changes: Mapping[str, Any] = field(default_factory=dict)


def iid(task: Task, leaves: int) -> dict[str, Any]:
    """Grow independent samples."""
    return {"policy": "iid", "settings": {"width": leaves}}


def steps(task: Task, leaves: int) -> dict[str, Any]:
    """Grow independent samples, each operation a segment."""
    settings = {"width": leaves, "step": STEP}
    return {"policy": "bench.trees.stepwise:Stepwise", "settings": settings}


def forks(task: Task, leaves: int) -> dict[str, Any]:
    """Grow a tree that forks in two at fixed places, as far apart as fill the answer."""
    levels = math.ceil(math.log2(leaves))
    segment = math.ceil(task.tokens / levels)
    settings = {"width": leaves, "segment": segment, "max_depth": levels + 1}
    return {"policy": "treepo-eager", "settings": settings}


def waves(task: Task, leaves: int) -> dict[str, Any]:
    """Grow TreePO's tree, whose waves give the share of ended paths to others."""
    return {**forks(task, leaves), "policy": "treepo"}


def chain_and_sides(task: Task, leaves: int) -> dict[str, Any]:
    """Grow Tree-GRPO's trees: a chain each, and three paths from nodes drawn at random."""
    settings = {"rounds": 1, "expansions": 3, "node": STEP}
    return {"policy": "tree-grpo", "trees": leaves // 4, "settings": settings}


def entropy(task: Task, leaves: int) -> dict[str, Any]:
    """Grow ROSE's tree, which branches where the next token is least sure."""
    return {"policy": "rose", "settings": {"width": leaves, "metric": "entropy"}}


def likely_forks(task: Task, leaves: int) -> dict[str, Any]:
    """Grow TreeRL's trees: chains, each forked where its own token was least likely."""
    settings = {"chains": leaves // 4, "forks": 3, "rounds": 1, "continuations": 1}
    return {"policy": "eptree", "settings": settings}


def lookahead(task: Task, leaves: int) -> dict[str, Any]:
    """Grow LATR's tree; a chain behind another result differs from it in two letters of six."""
    alike = {"edit_distance": 0.2, "suffix": 1.0, "rouge": 1.0}
    settings = {"width": leaves, "preset": "math", "chunk": STEP, "ages": [STEP, 2 * STEP], **alike}
    return {"policy": "latr", "settings": settings}


def staged(task: Task, leaves: int) -> dict[str, Any]:
    """Grow DARS's samples: more of them where few are right."""
    settings = {"width": leaves // 2, "max_width": 2 * leaves, "schedule": "equal"}
    return {"policy": "dars", "settings": settings}


def widened(task: Task, leaves: int) -> dict[str, Any]:
    """Grow ECHO's tree, whose width follows entropy."""
    settings = {"width": leaves, "chains": leaves // 4, "segment": STEP, "min_depth": 1}
    return {"policy": "echo", "settings": settings}


ARMS = {
    arm.name: arm
    for arm in (
        Arm("iid-grpo", iid, "grpo"),
        Arm("iid-dr-grpo", iid, "dr-grpo"),
        Arm("iid-rloo", iid, "rloo"),
        Arm(
            "iid-gigpo",
            steps,
            "gigpo",
            {"steps": "segments", "gamma": 1.0, "rows": "episodes"},
            facts=states,
        ),
        Arm("forks-rose", forks, "rose"),
        Arm("forks-outcome", forks, "dr-grpo"),
        Arm("forks-grpo", forks, "grpo"),
        Arm("treepo", waves, "treepo"),
        Arm("tree-grpo", chain_and_sides, "tree-grpo"),
        Arm("rose", entropy, "rose"),
        Arm("eptree", likely_forks, "treerl"),
        Arm("latr", lookahead, "grpo", changes={"allow_truncated_sampling": True}),
        Arm("dars", staged, "grpo", {"scale": "none"}),
        Arm("echo", widened, "echo"),
    )
}


def recipe(arm: Arm, task: Task, setting: Setting, seed: int) -> Recipe:
    """Return the recipe of an arm."""
    return Recipe.model_validate(
        {
            "name": arm.name,
            "model": str(policy.folder()),
            "task": {
                "name": "chains-mod",
                "size": ROWS,
                "config": {"operations": task.operations},
                "holdout": HELD_OUT / ROWS,
            },
            "generate": {
                "max_new_tokens": task.tokens + 1,
                **arm.generate(task, setting.leaves),
            },
            "filter": [dict(_SCORERS[task.right])],
            "control": {"groups_per_batch": setting.groups},
            "optimise": {
                "advantage": arm.advantage,
                "advantage_settings": dict(arm.advantage_settings),
                "loss": "reinforce",
                "learning_rate": setting.rate,
                "tokens_per_row": 8192,
            },
            "eval": {"max_rows": HELD_OUT},
            "resources": {"max_branches": 512, "kv_tokens": 1 << 18, "dtype": "float32"},
            "seed": seed,
            **arm.changes,
        }
    )
