"""Effect of learned heads on the scripted engine.

arrol against random pruning: of the groups with right and wrong rollouts, those whose survivors are
    all the one or the other. ets against REBASE at equal width: tokens of the nodes that a depth's
    candidates need, summed over depths, and the kinds of steps that go on at a depth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from banyan.draws import Draws
from banyan.plugins import GrowthBudget, GrowthView
from banyan.recipe_loader.load import resolve
from bench.harness.table import Result
from methods.generate.coroutine_policy import Growth
from methods.generate.ets.policy import Ets
from methods.generate.ets.search import Search
from services.rollout.simulation.simulate import Growth as Grown
from services.rollout.simulation.simulate import grow

TREES, WIDTH = 200, 16
_BASE: dict[str, Any] = {
    "name": "pruning",
    "model": "none",
    "task": {"name": "arithmetic"},
    "resources": {"engine": "scripted"},
}
# The first letter decides whether the path will be right, four times in five: after an `a` it turns
# to `r`, or else to `w`.
KINDS = {
    "": {"a": 0.75, "b": 0.25},
    "a": {"r": 0.8, "w": 0.2},
    "b": {"r": 0.2, "w": 0.8},
    "r": {"r": 1.0},
    "w": {"w": 1.0},
}
TOLD = {"a": 0.8, "b": 0.2, "": 0.5}
# Steps of a letter, a digit and a full stop; the head likes a's best and c's least.
STEPS = (
    {"": {"a": 0.4, "b": 0.4, "c": 0.2}}
    | {letter: {"1": 0.5, "2": 0.5} for letter in "abc"}
    | {f"{letter}{digit}": {".": 1.0} for letter in "ab" for digit in "12"}
    | {f"c{digit}": {".": 0.7, "": 0.3} for digit in "12"}
)
LIKED = {
    f"{letter}{digit}": score
    for letter, score in (("a", 0.9), ("b", 0.6), ("c", 0.3))
    for digit in "12"
} | {"": 0.5}


def run() -> Result:
    """Make both tables."""
    result = Result("pruning")
    without = {name: _without_spread(scores) for name, scores in (("head", TOLD), ("random", {}))}
    for name, share in without.items():
        result.add(f"arrol, {name}: mixed groups that lose their spread", 100 * share, "%")
    for name, changed in (
        ("ets", {}),
        ("ets without its bonus", {"lambda_d": 0.0}),
        ("REBASE", {"lambda_b": 0.0, "lambda_d": 0.0}),
    ):
        memory, kinds = _searched(changed)
        result.add(
            f"{name}: unique tokens of the candidates' paths, summed over depths", memory, "tokens"
        )
        result.add(f"{name}: kinds of steps that go on at a depth", kinds, "of 3")
    return result


def _grown(
    policy: str, settings: Mapping[str, Any], most: int, index: int, engine: Mapping[str, Any]
) -> Grown:
    generate = {"policy": policy, "settings": dict(settings), "max_new_tokens": most}
    return grow(resolve({**_BASE, "generate": generate}), index, dict(engine))


def _without_spread(scores: Mapping[str, float]) -> float:
    """Return the share of mixed groups whose survivors are all right or all wrong."""
    lost = mixed = 0
    for index in range(TREES):
        engine = {"chain": KINDS, "scores": scores}
        whole = _ends(
            _grown("arrol", {"width": WIDTH // 2, "detect": 2, "keep": 1.0}, 8, index, engine)
        )
        if len(whole) == 2:
            mixed += 1
            lost += (
                len(_ends(_grown("arrol", {"width": WIDTH // 2, "detect": 2}, 8, index, engine)))
                == 1
            )
    return lost / mixed


def _ends(growth: Grown) -> set[str]:
    """Return the last letters of paths of full length: right or wrong."""
    return {segment.text[-1] for segment in growth.tree if segment.fork and len(segment) > 2}


def _searched(changed: Mapping[str, Any]) -> tuple[float, float]:
    searches = [searched(index, changed) for index in range(TREES // 8)]
    kinds = [count for search in searches for count in search.kinds]
    return float(np.mean([search.kv_tokens for search in searches])), float(np.mean(kinds))


@dataclass(frozen=True)
class Searched:
    """Search of one tree.

    kv_tokens: unique tokens of the candidates' paths, summed over depths
    kinds: kinds of steps that go on, by depth
    """

    kv_tokens: int
    kinds: Sequence[int]


def searched(index: int, changed: Mapping[str, Any], width: int = WIDTH) -> Searched:
    """Search a tree with some settings of ets changed."""
    settings = {
        "width": width,
        "step": 4,
        "delimiter": ".",
        "depth": 8,
        "temperature": 1.0,
        **changed,
    }
    grown = _grown("ets", settings, 40, index, {"chain": STEPS, "scores": LIKED})
    search = Search(
        Ets(**settings), Growth(GrowthView(grown.tree, 0, 40), GrowthBudget(), Draws(0)), width
    )
    search.growth.start(search.grow())
    search.growth.plan()
    kinds = []
    for depth in search.depths:
        going = [n for n in depth.candidates if grown.tree.at(n.id, len(n.run.last), 0) is not None]
        kinds.append(len({node.run.text[0] for node in going}))
    return Searched(sum(depth.kv_tokens for depth in search.depths), kinds)
