"""Cost of planning: CPU time of growers for trees of many leaves, beside the sampling time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from banyan import registry
from banyan.draws import key
from banyan.plugins import Branch
from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from banyan.recipe_loader.load import resolve
from banyan.segment import Sampling
from banyan.tree import Tree
from bench.harness.table import Result, median
from services.rollout.engines.scripted.engine import ScriptedEngine, build
from services.rollout.growth.grower import Grower
from services.rollout.growth.planner import planner
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import GrowthStep

TIMES, LEAVES, TREES = 3, 256, 4
TOKENS_PER_S = 500.0  # of the torch engine on two cores: the base of the share of planning
_BASE = {
    "name": "planning",
    "model": "none",
    "task": {"name": "arithmetic"},
    "resources": {"engine": "scripted"},
    "allow_truncated_sampling": True,
}
_SCRIPT = {"chain": {"": {"a": 0.49, "b": 0.49, "": 0.02}}, "scores": {"a": 0.6, "b": 0.4, "": 0.5}}
_PROMPT = ({"role": "user", "content": "go"},)
CASES: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("iid", {"width": LEAVES}, 64),
    ("treepo", {"width": LEAVES, "segment": 8, "max_depth": 8}, 64),
    ("treepo-eager", {"width": LEAVES, "segment": 8, "max_depth": 8}, 64),
    ("eptree", {"chains": 52, "forks": 2, "continuations": 2}, 64),
    ("tree-grpo", {"rounds": 15, "expansions": 17, "node": 8}, 64),
    ("rose", {"width": LEAVES}, 64),
    ("echo", {"width": LEAVES, "chains": 64, "segment": 16}, 64),
    ("latr", {"width": LEAVES}, 64),
    ("arrol", {"width": LEAVES, "detect": 16}, 64),
    ("ets", {"width": LEAVES, "step": 16, "delimiter": "aab"}, 64),
)


@dataclass
class Spent:
    """CPU seconds in the grower (planning, segments, log of plans) and in the tree policy alone."""

    growing: float = 0.0
    policy: float = 0.0
    expansions: int = 0
    tokens: int = 0
    leaves: int = 0
    whole: float = 0.0


@dataclass
class _Timed:
    """Tree policy, or a planner of it, with a stopwatch."""

    inner: Any
    spent: Spent

    def plan(self, *arguments: Any) -> Any:
        return self._timed(self.inner.plan, *arguments)

    def planner(self, *arguments: Any) -> "_Timed":
        return _Timed(self._timed(partial(planner, self.inner), *arguments), self.spent)

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        begun = time.thread_time()
        result = work(*arguments)
        self.spent.policy += time.thread_time() - begun
        return result


def run() -> Result:
    """Measure each policy on trees of 256 leaves."""
    result = Result("planning")
    for name, settings, tokens in CASES:
        if name not in registry.names("generate"):
            continue
        spent = [grown(name, settings, tokens) for _ in range(TIMES)]
        share = median([100 * s.policy * TOKENS_PER_S / s.tokens for s in spent])
        result.add(
            f"{name}: planning, of the time to sample {spent[0].leaves // TREES} leaves",
            share,
            "%",
            "bar: below 1",
        )
        plans = median([s.expansions / s.policy for s in spent])
        result.add(
            f"{name}: expansions planned, plans alone",
            plans,
            "1/s",
            "bar: at least 10,000 for one planner",
        )
        rate = median([s.expansions / s.growing for s in spent])
        result.add(f"{name}: expansions through one grower, all its work", rate, "1/s")
    result.notes.append(
        f"sampling is taken to make {TOKENS_PER_S:.0f} tokens a second; medians of {TIMES} runs of "
        f"{TREES} trees"
    )
    return result


def grown(policy: str, settings: dict[str, Any], tokens: int) -> Spent:
    """Grow some trees side by side on the scripted engine, whose branches end anywhere."""
    generate = {"policy": policy, "settings": settings, "max_new_tokens": tokens}
    recipe = resolve({**_BASE, "generate": generate})
    spent, engine = Spent(), build(_SCRIPT, PolicyVersion(0, 0, b"bench"), 512)
    growers = [_grower(recipe, index, engine, spent) for index in range(TREES)]
    begun = time.thread_time()
    for index, grower in enumerate(growers):
        _act(index, _timed(spent, grower.start), engine, spent)
    while engine.busy:
        ended: dict[int, list[Any]] = {}
        for sampled in engine.step():
            spent.tokens += len(sampled.tokens_T)
            tree_id, _, _ = cast(tuple[bytes, int, Branch], sampled.key)
            ended.setdefault(int.from_bytes(tree_id, "little"), []).append(sampled)
        for index, segments in ended.items():
            _act(index, _timed(spent, partial(growers[index].ended, segments)), engine, spent)
    spent.whole, spent.leaves = time.thread_time() - begun, sum(len(g.leaves) for g in growers)
    return spent


def _grower(recipe: Recipe, index: int, engine: ScriptedEngine, spent: Spent) -> Grower:
    generate, seed = recipe.generate, key(0, "planning", index)
    policy = _Timed(registry.build("generate", generate.policy, generate.settings), spent)
    sampling = Sampling(max_new_tokens=generate.max_new_tokens, seed=seed)
    tree_id = index.to_bytes(4, "little")
    spec = GrowSpec(
        tree_id=tree_id,
        run_id=recipe.name,
        seed=seed,
        messages=_PROMPT,
        tree_policy=policy,
        max_path_tokens=generate.max_new_tokens,
        sampling=sampling,
        order=(0, index),
    )
    return Grower(spec, Tree(tree_id), engine.tokenizer, "bench")


def _timed(spent: Spent, work: Callable[[], GrowthStep]) -> GrowthStep:
    begun = time.thread_time()
    step = work()
    spent.growing += time.thread_time() - begun
    return step


def _act(index: int, step: GrowthStep, engine: ScriptedEngine, spent: Spent) -> None:
    spent.expansions += len(step.requests)
    for request in step.requests:
        engine.submit(request)
