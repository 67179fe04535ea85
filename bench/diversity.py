"""Diversity of a tree's answers: every tree policy on two tasks of reasoning-gym.

The model is SmolLM2, not trained. A policy's trees stand beside independent samples of the same
prompts at equal leaves, and at equal sampled tokens: the first of a pool until there are as many
leaves, and until about as many tokens are spent. Tokens that a policy discards count as spent. The
result of a (task, seed) is written at once, so an interrupted run continues.
"""

import itertools
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from banyan import registry
from bench.harness.forest import Answer, Forest, Grown, Job
from bench.harness.record import RESULTS
from bench.harness.table import Result
from methods.generate.latr.similarity import edit_distance

PROMPTS = int(os.environ.get("BENCH_PROMPTS", "6"))
SEEDS = tuple(range(int(os.environ.get("BENCH_SEEDS", "3"))))
POOL, LONGEST = 24, 160
SYSTEM = "Explain in several sentences how to find the answer, then give it as the last number."
TASKS: Mapping[str, Mapping[str, Any]] = {
    "basic_arithmetic": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "leg_counting": {"min_animals": 1, "max_animals": 1},
}
# About eight leaves of about eighty tokens. trees: of a group.
POLICIES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "iid": (1, {"width": 8}),
    "treepo": (1, {"width": 8, "segment": 20, "max_depth": 8}),
    "treepo-eager": (1, {"width": 8, "segment": 20, "max_depth": 8}),
    "echo": (1, {"width": 8, "chains": 2, "segment": 20}),
    "eptree": (1, {"chains": 4, "forks": 1, "rounds": 1, "continuations": 1}),
    "latr": (
        1,
        {"width": 8, "preset": "countdown", "ages": [20, 30], "chunk": 10, "force_return": 60},
    ),
    "rose": (1, {"width": 8, "epsilon": 0.5}),
    "tree-grpo": (2, {"rounds": 1, "expansions": 3, "node": 20}),
    "dars": (1, {"width": 4, "max_width": 12}),
    "ets": (
        1,
        {"width": 8, "step": 20, "depth": 8, "most": 160},
    ),  # no head is trained here: all scores are equal
    "arrol": (
        1,
        {"width": 16, "detect": 40},
    ),  # the same: half of those that are not done at token 40 are dropped
}
FIGURES = ("distinct", "distance", "passed")
PATH = RESULTS / "diversity" / "cells.json"


@dataclass(frozen=True)
class Spread:
    """Diversity of one set of answers.

    It is the number of different ones, the mean edit distance of two as a share of the longer, and
    whether one is right.
    """

    distinct: float
    distance: float
    passed: float


def spread(answers: Sequence[Answer]) -> Spread:
    """Return the diversity of a set of answers. An answer without a number is none."""
    distinct = len({answer.value for answer in answers if answer.value is not None})
    pairs = [_apart(a.tokens, b.tokens) for a, b in itertools.combinations(answers, 2)]
    return Spread(
        distinct,
        statistics.fmean(pairs) if pairs else 0.0,
        float(any(answer.right for answer in answers)),
    )


def _apart(a: Sequence[int], b: Sequence[int]) -> float:
    return edit_distance(a, b) / max(len(a), len(b), 1)


def within(pool: Sequence[Answer], tokens: int) -> list[Answer]:
    """Return the first answers of a pool, at least one, whose tokens come nearest to a number."""
    spent = list(itertools.accumulate(len(answer.tokens) for answer in pool))
    count = min(range(1, len(pool) + 1), key=lambda count: abs(spent[count - 1] - tokens))
    return list(pool[:count])


def compare(grown: Sequence[Grown], pools: Sequence[Grown]) -> dict[str, Any]:
    """Return one cell: means over its prompts, and the number of times the pool was too small."""
    sets = {
        "tree": [g.answers for g in grown],
        "leaves": [p.answers[: len(g.answers)] for g, p in zip(grown, pools, strict=True)],
        "tokens": [within(p.answers, g.sampled) for g, p in zip(grown, pools, strict=True)],
    }
    cell: dict[str, Any] = {
        name: _mean([asdict(spread(answers)) for answers in each]) for name, each in sets.items()
    }
    lengths = [len(answer.tokens) for g in grown for answer in g.answers]
    short = sum(
        len(g.answers) > POOL or g.sampled > p.sampled for g, p in zip(grown, pools, strict=True)
    )
    counts = {
        "leaves_of": statistics.fmean(len(g.answers) for g in grown),
        "sampled": sum(g.sampled for g in grown),
    }
    equal = {"leaves_at_equal_tokens": statistics.fmean(len(answers) for answers in sets["tokens"])}
    return (
        cell
        | counts
        | equal
        | {"length": statistics.fmean(lengths), "prompts": len(grown), "short_pools": short}
    )


def _mean(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(figures[name] for figures in each) for name in FIGURES}


def run() -> Result:
    """Measure all missing cells, then make the table; remove kept cells when it is complete."""
    cells = json.loads(PATH.read_text()) if PATH.exists() else {}
    wanted = [(seed, task) for seed in SEEDS for task in TASKS]
    if any(_key(task, seed, policy) not in cells for seed, task in wanted for policy in POLICIES):
        forest = Forest(LONGEST)
        for seed, task in wanted:
            _measure(forest, task, seed, cells)
    PATH.unlink(missing_ok=True)
    return table(cells)


def _key(task: str, seed: int, policy: str) -> str:
    return f"{task}/{seed}/{policy}/{PROMPTS}"


def _measure(forest: Forest, task: str, seed: int, cells: dict[str, Any]) -> None:
    missing = [policy for policy in POLICIES if _key(task, seed, policy) not in cells]
    if not missing:
        return
    prompts = forest.prompts(task, TASKS[task], SYSTEM, seed, PROMPTS)
    jobs = [
        _job("iid", 1, {"width": POOL}, 1000 + seed),
        *(_job(policy, *POLICIES[policy], seed) for policy in missing),
    ]
    pools, *grown = forest.grow(jobs, prompts)
    for policy, each in zip(missing, grown, strict=True):
        cell = cells[_key(task, seed, policy)] = compare(each, pools)
        print(
            f"  {_key(task, seed, policy):<32} {json.dumps(cell['tree'])} {cell['sampled']} tokens",
            flush=True,
        )
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(json.dumps(cells, indent=1))


def _job(policy: str, trees: int, settings: Mapping[str, Any], seed: int) -> Job:
    return Job(lambda: registry.build("generate", policy, dict(settings)), trees, seed)


def table(cells: Mapping[str, Any]) -> Result:
    """Return means over seeds, with their standard deviation as the bar's text."""
    result = Result("diversity")
    for task, policy in itertools.product(TASKS, POLICIES):
        of_seeds = [cells[key] for seed in SEEDS if (key := _key(task, seed, policy)) in cells]
        if not of_seeds:
            continue
        for name in FIGURES:
            for against in ("tree", "leaves", "tokens"):
                values = [cell[against][name] for cell in of_seeds]
                how = {
                    "tree": policy,
                    "leaves": "iid at its leaves",
                    "tokens": "iid at its tokens",
                }[against]
                off = statistics.stdev(values) if len(values) > 1 else 0.0
                result.add(
                    f"{task}: {policy}: {name}: {how}", statistics.fmean(values), "", f"± {off:.2g}"
                )
        for name in ("leaves_of", "leaves_at_equal_tokens", "length"):
            result.add(
                f"{task}: {policy}: {name}", statistics.fmean(cell[name] for cell in of_seeds), ""
            )
        if short := sum(cell["short_pools"] for cell in of_seeds):
            result.notes.append(
                f"{task}: {policy}: its {short} largest groups cost more than the pool holds"
            )
    for name in registry.names("generate"):
        if name not in POLICIES:
            result.notes.append(f"{name}: not measured: no settings for these tasks")
    result.notes.append(
        f"{PROMPTS} prompts, {len(SEEDS)} seeds, at most {LONGEST} tokens, temperature 1, bfloat16"
    )
    return result
