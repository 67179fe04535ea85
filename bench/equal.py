"""Independent samples with GRPO against each tree recipe, at equal sampled tokens.

The figure is held-out greedy accuracy, over several seeds. Each recipe runs unchanged, through all
services, until it has sampled the tokens and its policy has been measured; accuracy at exactly
those tokens lies on the line between the two measured policies around them. A tree's waste counts
as sampled. The result of a (recipe, seed) is written at once, so an interrupted run continues.
Neither tokens nor accuracy depend on other load of the machine.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from banyan.recipe_loader.load import load
from bench.harness import through
from bench.harness.cells import Cells, wanted
from bench.harness.compared import COMPARED
from bench.harness.curve import at_tokens
from bench.harness.record import RESULTS
from bench.harness.table import Result

RECIPES = Path(__file__).parents[1] / "recipes"
RIVAL = "arithmetic"
TREES = (
    "treepo",
    "treepo-eager",
    "tree-grpo",
    "rose",
    "echo",
    "eptree",
    "latr",
    "ets",
    "arrol",
    "dars",
    "xrpo",
)
TOKENS = int(os.environ.get("BENCH_TOKENS", "4000"))
SEEDS = tuple(range(int(os.environ.get("BENCH_SEEDS", "3"))))
EVERY = 2
PATH = RESULTS / "equal" / "cells.json"
Cell = Mapping[str, Any]


def run() -> Result:
    """Measure all missing cells, or those in BENCH_CELLS; remove kept cells when all are there."""
    cells = Cells(PATH, wanted())
    for seed in SEEDS:
        for name in (RIVAL, *TREES):
            cells.get(_key(name, seed), partial(_measured, name, seed))
    missing = [
        _key(name, seed)
        for name in (RIVAL, *TREES)
        for seed in SEEDS
        if _key(name, seed) not in cells.held
    ]
    result = table(cells.held)
    if missing:
        result.notes.append(f"not whole: without {', '.join(missing)}")
    else:
        PATH.unlink()
    return result


def _key(name: str, seed: int) -> str:
    return f"{name}/{seed}/{TOKENS}"


def _measured(name: str, seed: int) -> dict[str, Any]:
    changes = [
        *(COMPARED if name == RIVAL else ()),  # the rate of the others, though it falls
        f"seed={seed}",
        "eval.samples=0",
        "eval.votes=null",
        f"eval.every={EVERY}",
        "budget.steps=1000",
        "optimise.checkpoint_every=1000",
    ]
    recipe = load(RECIPES / f"{name}.yaml", changes)
    curve = through.run(recipe, lambda so_far: so_far.measured_tokens >= TOKENS)
    cell = {
        "tokens": curve.tokens,
        "accuracy": dict(curve.accuracy),
        "leaves": [m["leaves"] for m in curve.metrics],
    }
    print(f"  {_key(name, seed)}: {held(cell):.3f} after {len(curve.seconds)} steps", flush=True)
    return cell


def held(cell: Cell, tokens: int = 0) -> float:
    """Return the accuracy of a cell at the tokens."""
    accuracy = {int(step): value for step, value in cell["accuracy"].items()}
    accuracy_at = at_tokens(cell["tokens"], accuracy, tokens or TOKENS)
    if accuracy_at is None:
        raise ValueError(
            f"no policy was measured beyond {tokens or TOKENS} tokens; the last of "
            f"{cell['tokens'][-1]}"
        )
    return accuracy_at


def table(cells: Mapping[str, Cell]) -> Result:
    """Return accuracy at half of the tokens and at all, over seeds, against the rival's.

    Figures are mean and standard deviation.
    """
    result = Result("equal")
    for tokens in (TOKENS // 2, TOKENS):
        rival = _values(cells, RIVAL, tokens)
        for name in (RIVAL, *TREES):
            values = _values(cells, name, tokens)
            if values:
                result.add(
                    f"{tokens} tokens: {name}",
                    100 * statistics.fmean(values),
                    "%",
                    _against(values, rival),
                )
    for name in (RIVAL, *TREES):
        if steps := [
            len(cell["leaves"]) for key, cell in cells.items() if key.startswith(f"{name}/")
        ]:
            result.add(f"{name}: optimizer steps", statistics.fmean(steps), "")
    result.notes.append(
        f"{len(SEEDS)} seeds; ± is the standard deviation over them, on 44 held-out rows"
    )
    return result


def _values(cells: Mapping[str, Cell], name: str, tokens: int) -> list[float]:
    return [held(cells[_key(name, seed)], tokens) for seed in SEEDS if _key(name, seed) in cells]


def _against(values: Sequence[float], rival: Sequence[float]) -> str:
    """Return spread, number of seeds, and the difference to the rival in standard errors."""
    off = 100 * statistics.stdev(values) if len(values) > 1 else 0.0
    text = f"± {off:.1f}, {len(values)} seeds"
    if len(values) < 2 or len(rival) < 2 or values == rival:
        return text
    difference = statistics.fmean(values) - statistics.fmean(rival)
    error = (
        statistics.variance(values) / len(values) + statistics.variance(rival) / len(rival)
    ) ** 0.5
    verdict = (
        "within the spread"
        if abs(difference) <= 2 * error
        else ("WINS" if difference > 0 else "LOSES")
    )
    return f"{text}; {100 * difference:+.1f} against iid: {verdict}"
