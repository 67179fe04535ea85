"""Saving by tree policies: sampled tokens against independent samples of as many leaves.

They run on the scripted engine. Where the tree of a policy can be counted by hand, the closed form
stands beside the figure. Independent samples are drawn, not derived: a policy that branches below
all paths that have not ended also samples longer paths, and pays for them.
"""

import itertools
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from banyan import registry
from banyan.recipe import Recipe
from banyan.recipe_loader.load import load, resolve
from bench.harness.table import Result
from services.rollout.simulation.simulate import Growth, grow

RECIPES = Path(__file__).parents[1] / "recipes"
WITHIN, BAR = 0.02, 0.40
Chain = Mapping[str, Mapping[str, float]]
ENDLESS: Chain = {"": {"a": 0.5, "b": 0.5}}
SHAPED = {"segment": 8, "max_depth": 14, "width": 16}


def staged(tokens: float, stages: int = 20) -> Chain:
    """Return a chain of paths of about so many tokens.

    Letters follow each other, each for a geometric time, then comes the end.
    """
    leave, letters = stages / (tokens - 1), string.ascii_letters[:stages]
    pairs = itertools.pairwise((*letters, ""))
    return {"": {"a": 1.0}} | {a: {a: 1 - leave, b: leave} for a, b in pairs}


def one_fork(at: int) -> Chain:
    """Return a chain with one choice of two, at token `at`; all else is sure."""
    letters = string.ascii_lowercase
    sure = {a: {b: 1.0} for a, b in itertools.pairwise(letters)} | {
        "z": {"z": 1.0},
        letters[at].upper(): {letters[at + 1]: 1.0},
    }
    return {"": {"a": 1.0}} | sure | {letters[at - 1]: {letters[at]: 0.5, letters[at].upper(): 0.5}}


@dataclass(frozen=True)
class Case:
    """Policy on a chain. closed: saving by hand; least: required saving."""

    what: str
    policy: str
    settings: Mapping[str, Any]
    most: int  # tokens of a path
    chain: Chain = field(default_factory=lambda: ENDLESS)
    trees: int = 4
    closed: float | None = None
    least: float | None = None

    def saving(self) -> float:
        """Return 1 − sampled tokens / those of as many independent samples."""
        trees = [self._grow(self.policy, self.settings, i) for i in range(self.trees)]
        iid = [self._grow("iid", {"width": tree.leaves}, i) for i, tree in enumerate(trees)]
        return 1 - sum(t.sampled_tokens for t in trees) / sum(t.sampled_tokens for t in iid)

    def holds(self, saving: float) -> bool:
        """Return whether it equals the closed form and reaches the bar."""
        near = self.closed is None or abs(saving - self.closed) <= WITHIN
        return near and (self.least is None or saving >= self.least)

    @property
    def bar(self) -> str:
        """Text of the bar."""
        closed = [] if self.closed is None else [f"closed form {self.closed:.1%}"]
        return ", ".join(closed + ([] if self.least is None else [f"at least {self.least:.0%}"]))

    def _grow(self, policy: str, settings: Mapping[str, Any], index: int) -> Growth:
        generate = {"policy": policy, "settings": dict(settings), "max_new_tokens": self.most}
        return grow(resolve({**_BASE, "generate": generate}), index, {"chain": self.chain})


_SCORED = dict.fromkeys(("dars", "scope"), "its tree grows by its leaves' scores")
_BASE = {
    "name": "saving",
    "model": "none",
    "task": {"name": "arithmetic"},
    "resources": {"engine": "scripted"},  # its head knows nothing of these chains, as a cold one
    "allow_truncated_sampling": True,
}


def binary(depth: int) -> float:
    """Return the saving of W = 2^depth leaves of a full binary tree.

    It has 2^(depth+1) − 2 segments instead of depth · 2^depth.
    """
    return float(1 - (2 ** (depth + 1) - 2) / (depth * 2**depth))


def shaped(depth: int, width: int = 16, divisor: int = 2) -> float:
    """Return the saving of branches of `divisor` until there are `width` paths, which go on
    alone."""
    return float(
        1 - sum(min(width, divisor**level) for level in range(1, depth + 1)) / (depth * width)
    )


CASES = (
    *(
        Case(f"{p}: binary tree, D = 4", p, {**SHAPED, "max_depth": 4}, 32, closed=binary(4))
        for p in ("treepo", "treepo-eager")
    ),
    *(
        Case(f"{p}: W = 16, 6 of 6 segments", p, {**SHAPED, "max_depth": 6}, 48, closed=shaped(6))
        for p in ("treepo", "treepo-eager")
    ),
    *(
        Case(f"{p}: W = 16, 14 of 14 segments", p, SHAPED, 112, closed=shaped(14))
        for p in ("treepo", "treepo-eager")
    ),
    *(
        Case(
            f"{p}: W = 16, ends after {n} of 14 segments, more or less",
            p,
            SHAPED,
            112,
            staged(8 * n),
            8,
            least=bar,
        )
        for p in ("treepo", "treepo-eager")
        for n, bar in ((4, BAR), (4.5, BAR), (6, None))
    ),
    *(
        Case(
            f"{p}: W = 16, ends anywhere, mean 4 of 14 segments",
            p,
            SHAPED,
            112,
            {"": {"a": 31 / 64, "b": 31 / 64, "": 1 / 32}},
            8,
        )
        for p in ("treepo", "treepo-eager")
    ),
    Case(
        "eptree: M = 4, N = 1, T = 4, the one fork at token 12 of 26",
        "eptree",
        {"chains": 4, "forks": 1, "continuations": 4},
        26,
        one_fork(12),
        closed=4 / 5 * 12 / 26,
    ),
    Case(
        "tree-grpo: n = 2, chains of 8 nodes",
        "tree-grpo",
        {"node": 1},
        8,
        trees=768,
        closed=2 / 3 * 7 / 16,
    ),
    Case(
        "rose: n = 8, ε = ¼, the one fork at token 4 of 8, revisited",
        "rose",
        {"epsilon": 0.25, "metric": "entropy", "revisit": True},
        8,
        one_fork(4),
        trees=128,
        closed=7 / 8 * 3 / 4 * 4 / 8,
    ),
)


def run() -> Result:
    """Measure all cases, then each registered policy with the settings of its recipe."""
    result = Result("saving")
    for case in CASES:
        saving = case.saving()
        result.add(
            case.what, 100 * saving, "%", case.bar + ("" if case.holds(saving) else "  MISSED")
        )
    for name in registry.names("generate"):
        recipe = None if name in _SCORED else _recipe(name)
        if recipe is None:
            result.notes.append(
                f"{name}: not measured by itself: {_SCORED.get(name, 'no recipe of its name')}"
            )
            continue
        generate = recipe.generate
        for chain, how in (
            (ENDLESS, "no path ends early"),
            (staged(generate.max_new_tokens / 2, 3), "ends half-way"),
        ):
            case = Case(
                f"recipe {name}: {how}",
                name,
                generate.settings,
                generate.max_new_tokens,
                chain,
                trees=8,
            )
            result.add(case.what, 100 * case.saving(), "%")
    return result


def _recipe(policy: str) -> Recipe | None:
    path = RECIPES / f"{policy}.yaml"
    recipe = load(path) if path.exists() else None
    return recipe if recipe is not None and recipe.generate.policy == policy else None
