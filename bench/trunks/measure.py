"""Trees against independent samples where rollouts use tools: tokens of a leaf, and what is learnt.

Each arm grows as many leaves a step as the others of its recipe, through all services, until it has
sampled the tokens and its policy has been measured. A leaf's tokens are those of the training trees
that are whole (closed, or in a batch), divided by their leaves: sampled, prefilled (a prefix's
tokens that the engine had not kept, its own tool answers among them), and given by tools. Held-out
greedy success at exactly the tokens lies on the line between the two measured policies around them.
The result of a cell is written at once, so an interrupted run continues; neither tokens nor success
depend on other load of the machine.
"""

import os
import sqlite3
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from banyan.recipe_loader.load import load
from banyan.segment import Kind
from bench.harness import through
from bench.harness.cells import Cells, wanted
from bench.harness.curve import Curve, at_tokens
from bench.harness.record import RESULTS
from bench.harness.table import Result

RECIPES = Path(__file__).parents[2] / "recipes"
SEEDS = tuple(range(int(os.environ.get("BENCH_SEEDS", "1"))))
PATH = RESULTS / "trunks" / "cells.json"
TOKENS = {"calculator": 8_000, "textworld": 16_000}
_ROWS = ("eval.samples=0", "eval.max_rows=100", "budget.steps=1000")
_RARELY = "optimise.checkpoint_every=1000"
_FORKS = (
    "generate={policy: turns, settings: {starts: 2, branches: 2, depth: 2}, max_new_tokens: 32}"
)
ARMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "calculator": {
        "iid, grpo": (
            "generate={policy: iid, settings: {width: 8}, max_new_tokens: 40}",
            "eval.every=2",
        ),
        "turns, grpo": ("eval.every=2",),
        "turns, rose": ("optimise.advantage=rose", "eval.every=2"),
    },
    "textworld": {
        "iid, gigpo": ("eval.every=5",),
        "turns, gigpo": (_FORKS, "eval.every=5"),
        "turns, rose": (_FORKS, "optimise.advantage=rose", "eval.every=5"),
    },
}
_PREFIXES = """
    with recursive place(id, tree_id, kind, prefix, cached, length) as (
        select s.id, s.tree_id, s.kind, 0, 0, s.length from segments s join trees t
            on t.tree_id = s.tree_id where t.run_id = ? and t.purpose = 1 and t.state in (3, 4)
            and s.parent = x''
        union all
        select s.id, s.tree_id, s.kind, place.prefix + s.fork, s.cached_tokens, s.length
            from segments s join place on s.parent = place.id)
    select kind, sum(length), sum(prefix - cached) from place group by kind
"""
Cell = Mapping[str, Any]


def run() -> Result:
    """Measure all missing cells, or those in BENCH_CELLS; remove kept cells when all are there."""
    cells = Cells(PATH, wanted())
    keys = [(recipe, arm, seed) for recipe in ARMS for arm in ARMS[recipe] for seed in SEEDS]
    for recipe, arm, seed in keys:
        cells.get(_key(recipe, arm, seed), partial(_measured, recipe, arm, seed))
    missing = [_key(*key) for key in keys if _key(*key) not in cells.held]
    result = table(cells.held)
    if missing:
        result.notes.append(f"not whole: without {', '.join(missing)}")
    else:
        PATH.unlink()
    return result


def _key(recipe: str, arm: str, seed: int) -> str:
    return f"{recipe}/{arm}/{seed}/{TOKENS[recipe]}"


def _measured(name: str, arm: str, seed: int) -> dict[str, Any]:
    changes = [*_ROWS, _RARELY, f"seed={seed}", *ARMS[name][arm]]
    recipe = load(RECIPES / f"{name}.yaml", changes)
    counts: dict[str, float] = {}

    def enough(so_far: Curve) -> bool:
        return so_far.measured_tokens >= TOKENS[name]

    def look(database: Path, run_id: str) -> None:
        counts.update(tokens_of(database, run_id))

    curve = through.run(recipe, enough, deadline_s=3600.0, look=look)
    cell = {"tokens": curve.tokens, "accuracy": dict(curve.accuracy), **counts}
    print(f"  {_key(name, arm, seed)}: {cell}", flush=True)
    return cell


def tokens_of(database: Path, run_id: str) -> dict[str, float]:
    """Return the leaves of a run's training trees, and the tokens sampled, prefilled and given.

    Trees that still grow when the run ends have tokens and lack leaves, and are left out.
    """
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        kinds = {Kind(kind): row for kind, *row in db.execute(_PREFIXES, (run_id,))}
        (leaves,) = db.execute(
            "select count(*) from leaves l join trees t on t.tree_id = l.tree_id"
            " where t.run_id = ? and t.purpose = 1 and t.state in (3, 4) and l.listed",
            (run_id,),
        ).fetchone()
    sampled, prefilled = kinds[Kind.POLICY]
    prefilled += kinds.get(Kind.FORCED, (0, 0))[1]  # a request that begins with forced tokens
    given, _ = kinds.get(Kind.TOOL, (0, 0))
    return {"leaves": leaves, "sampled": sampled, "prefilled": prefilled, "given": given}


def table(cells: Mapping[str, Cell]) -> Result:
    """Return the tokens of a leaf and the success of each arm: means over seeds."""
    result = Result("trunks")
    for recipe, arms in ARMS.items():
        for arm in arms:
            found = [cells[key] for s in SEEDS if (key := _key(recipe, arm, s)) in cells]
            if not found:
                continue
            for what in ("sampled", "prefilled", "given"):
                each = [cell[what] / cell["leaves"] for cell in found]
                result.add(f"{recipe}: {arm}: {what} a leaf", statistics.fmean(each), "tokens")
            _add_success(result, recipe, arm, found)
    result.notes.append("greedy on 100 held-out rows; ± is the standard deviation over seeds")
    return result


def _add_success(result: Result, recipe: str, arm: str, found: list[Cell]) -> None:
    tokens = TOKENS[recipe]
    for at in (0, tokens // 2, tokens):
        values = [success(cell, at) for cell in found]
        off = 100 * statistics.stdev(values) if len(values) > 1 else 0.0
        spread = f"± {off:.1f}, {len(values)} seeds"
        what = f"{recipe}: {arm}: success at {at} tokens"
        result.add(what, 100 * statistics.fmean(values), "%", spread)


def success(cell: Cell, tokens: int) -> float:
    """Return the held-out success at a number of sampled tokens. Raises ValueError beyond them."""
    accuracy = {int(step): value for step, value in cell["accuracy"].items()}
    found = at_tokens(cell["tokens"], accuracy, tokens)
    if found is None:
        raise ValueError(f"no policy was measured beyond {tokens} tokens")
    return found
