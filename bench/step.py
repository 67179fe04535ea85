"""One step of the arithmetic recipe, tree against naive, in turn: sampling and training seconds.

Prompts and rewards are the same.
"""

import gc
import random
import time
from collections.abc import Sequence
from typing import Any

from banyan.credit.estimate import ScoredTree
from banyan.recipe_loader.load import load
from bench.harness.compared import RECIPE
from bench.harness.table import Result, median
from bench.rivals.naive import NaiveLoop
from bench.rivals.oneprocess import OneProcess
from services.chassis import models
from services.gateway.tasks import messages
from services.learner.data.prepare import build_lesson

RUNS = 5
GROUPS, WIDTH = 8, 8


def run() -> Result:
    """Return medians of alternating runs after one warm-up each; rewards are drawn.

    So no group is skipped.
    """
    recipe = load(RECIPE)
    tree = OneProcess(recipe)
    naive = NaiveLoop(
        models.resolve(recipe.model),
        recipe.optimise.learning_rate,
        WIDTH,
        recipe.generate.max_new_tokens,
    )
    draw = random.Random(0)
    seconds: dict[str, list[float]] = {
        name: [] for name in ("naive sample", "naive train", "sample", "train", "skipping")
    }
    for turn in range(RUNS + 1):
        rows = draw.sample(tree.split.train, GROUPS)
        rewards = [
            float(draw.random() < 0.5) if w > 1 else float(w) for _ in rows for w in range(WIDTH)
        ]
        samples = naive.sample([messages(row, recipe.task) for row in rows])
        trained = naive.train(samples, rewards)
        ours = _tree_step(tree, rows, rewards, turn)
        half = [r if i // WIDTH < GROUPS // 2 else 0.0 for i, r in enumerate(rewards)]
        skipping = _tree_step(tree, rows, half, turn + 100)
        if turn:
            values = (samples.seconds, trained, *ours, skipping[1])
            for name, value in zip(seconds, values, strict=True):
                seconds[name].append(value)
        gc.collect()
    return _result(seconds)


def _tree_step(
    process: OneProcess, rows: Sequence[dict[str, Any]], rewards: Sequence[float], number: int
) -> tuple[float, float]:
    t0 = time.perf_counter()
    grown = process.grow(rows, WIDTH, 1.0, f"bench/{number}")
    t1 = time.perf_counter()
    groups = []
    for g, (tree, leaves) in enumerate(grown):
        scores = dict(zip(leaves, rewards[g * WIDTH : (g + 1) * WIDTH], strict=True))
        groups.append((str(g), [ScoredTree(tree, leaves, scores)]))
    budget = process.recipe.optimise.tokens_per_row
    lesson = build_lesson(
        groups,
        process.estimator,
        lambda tree, leaf: False,
        process.policy.digest,
        budget,
        targets=process.trainer.loss.targets,
    )
    process.trainer.step(lesson.sequences, number, silent=lesson.silent)
    t2 = time.perf_counter()
    process.refresh()
    return t1 - t0, t2 - t1


def _result(seconds: dict[str, list[float]]) -> Result:
    result = Result("step")
    mid = {name: median(values) for name, values in seconds.items()}
    result.add("naive: sampling, each prompt prefilled 8 times", mid["naive sample"], "s")
    result.add("naive: training, each prompt trained 8 times", mid["naive train"], "s")
    result.add("tree: sampling, each prompt prefilled once", mid["sample"], "s")
    result.add("tree: training, each shared token once", mid["train"], "s")
    both = [
        (a + b) / (c + d)
        for a, b, c, d in zip(
            *(seconds[n] for n in ("naive sample", "naive train", "sample", "train")), strict=True
        )
    ]
    result.add("naive / tree, sampling and training", median(both), "x", "bar: at least 2")
    result.add("tree: training with half of the groups skipped", mid["skipping"], "s")
    result.notes.append(
        f"{GROUPS} prompts x {WIDTH} samples x 8 tokens, bf16, {RUNS} alternating runs, medians"
    )
    return result
