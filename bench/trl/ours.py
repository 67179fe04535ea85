"""Our side: the arithmetic recipe through all five services, in new processes."""

import itertools
import os
import sqlite3
from pathlib import Path
from statistics import fmean
from typing import Any

from banyan.recipe import Recipe
from banyan.recipe_loader.load import load
from bench.harness import through
from bench.harness.compared import RECIPE
from bench.trl import prompts, theirs
from bench.trl.mapping import CHANGES

MORE = tuple(
    os.environ.get("BENCH_SET", "").split()
)  # changes of the recipe for both sides, as of --set
_TIMES = ("prepare_seconds", "train_seconds", "publish_seconds")
VARIED = "optimise.advantage=bench.trl.estimator:Varied"


def recipe(*changes: str) -> Recipe:
    """Return the arithmetic recipe as it is compared."""
    return load(RECIPE, [*CHANGES, *MORE, *changes])


def short(steps: int, reward: str, *changes: str) -> dict[str, Any]:
    """Run a few steps, with few evaluations."""
    few = [f"budget.steps={steps}", "eval.samples=0", "eval.max_rows=2"]
    return _run(recipe(*few, *([VARIED] if reward == "varied" else []), *changes))


def learn(seed: int, every: int) -> dict[str, Any]:
    """Run the whole arithmetic recipe, measured every so many steps."""
    return _run(recipe(f"seed={seed}", "eval.samples=0", f"eval.every={every}"))


def row_tokens(paths: int) -> int:
    """Return tokens_per_row with which a sequence holds as many paths as a micro-batch of TRL's.

    These are whole groups.
    """
    compared = recipe()
    groups = paths // compared.generate.settings["width"]
    width = compared.generate.settings["width"]
    longest = max(len(ids) for ids in prompts.encoded(compared, theirs.rows(compared, 20)))
    return int(groups * (longest + width * compared.generate.max_new_tokens))


def _run(wanted: Recipe) -> dict[str, Any]:
    """Return the course of the run.

    Raises RuntimeError unless its engine was given the recipe's first rows.
    """
    state_of_run: dict[str, Any] = {}

    def look(database: Path, run_id: str) -> None:
        state_of_run.update(
            prompts=prompts.stored(database, run_id), held_out=_held_out(database, run_id)
        )

    curve = through.run(wanted, look=look)
    rows = theirs.rows(wanted, len(curve.seconds))
    prompt_ids = state_of_run["prompts"][
        : len(rows)
    ]  # groups that were opened for a step after the last are left out
    prompts.compare(prompt_ids, prompts.encoded(wanted, rows), "Banyan")
    return {
        "seconds": curve.seconds,
        "tokens": [b - a for a, b in itertools.pairwise(curve.tokens)],
        "prompts": prompts.digest(prompt_ids),
        "prompts_given": len(prompt_ids),
        "accuracy": dict(curve.accuracy),
        "held_out": state_of_run["held_out"],
        "rewards": [m.get("reward", 0.0) for m in curve.metrics],
        "skipped": fmean(m["groups_skipped"] for m in curve.metrics),
        "trained": [m["trained_path_tokens"] for m in curve.metrics],
        "of_it": {name: [m.get(name, 0.0) for m in curve.metrics] for name in _TIMES},
    }


def _held_out(database: Path, run_id: str) -> int:
    """Return the number of rows of the greedy evaluations, equal in all."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        counts = db.execute(
            "select distinct scored from tallies where run_id = ? and label like '%-greedy' and "
            "groups = closed + dropped",
            (run_id,),
        ).fetchall()
    if len(counts) != 1:
        raise RuntimeError(
            f"greedy evaluations of one run have {sorted(n for (n,) in counts)} scored rows; one "
            "number is wanted"
        )
    return int(counts[0][0])
