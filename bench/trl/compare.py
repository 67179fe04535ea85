"""Cells of the comparison in order, each in new processes, one after the other; then the table."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import version

from banyan import torchenv
from bench.cells import Cell, Cells, wanted
from bench.table import RESULTS, Result
from bench.trl import figures, mapping, ours, theirs
from bench.trl.mapping import VARIANTS, Variant

SWEEP_STEPS = int(os.environ.get("BENCH_SWEEP_STEPS", "3"))
STEPS = int(os.environ.get("BENCH_STEPS", "5"))
SEEDS = tuple(range(int(os.environ.get("BENCH_SEEDS", "3"))))
EVERY = 2
PATH = RESULTS / "trl-cells.json"
ARMS = {"same-work": "varied", "as-shipped": "task"}
PACKAGES = ("torch", "transformers", "numpy", "grpcio", "nats-py", "sqlalchemy")


def run() -> Result:
    """All cells that are missing, or those that BENCH_CELLS names; what was kept goes when it is whole."""
    cells, result = Cells(PATH, wanted()), Result("trl")
    sweep = _cells(cells, "sweep", lambda v: theirs.run(ours.recipe(), v, SWEEP_STEPS, "varied"), VARIANTS)
    _report_sweep(result, sweep)
    whole = len(sweep) == len(VARIANTS) and all([_arms(result, cells, sweep), _learning(result, cells, sweep)])
    _settings(result, sweep)
    if whole:
        PATH.unlink()
    else:
        result.notes.append(f"not whole: {len(cells.held)} cells so far; run it again for the others")
    return result


def _cells(cells: Cells, kind: str, measure: Callable[[Variant], Cell], variants: Iterable[Variant]) -> dict[str, Cell]:
    """By variant, those that are there."""
    found = {v.name: cells.get(f"{kind}/{v.name}", lambda v=v: measure(v)) for v in variants}  # type: ignore[misc]
    return {name: cell for name, cell in found.items() if cell}


def _arms(result: Result, cells: Cells, sweep: Mapping[str, Cell]) -> bool:
    """Few steps each of the same work, and as both come. Whether all are there."""
    recipe, chosen, there = ours.recipe(), _named(figures.best(sweep)), 0
    for arm, reward in ARMS.items():
        his = cells.get(f"{arm}/trl", lambda reward=reward: theirs.run(recipe, chosen, STEPS, reward))  # type: ignore[misc]
        own = cells.get(f"{arm}/banyan", lambda reward=reward: ours.short(STEPS, reward))  # type: ignore[misc]
        if his and own:
            there += 1
            figures.add_arm(result, arm, his, own)
            _check(result, arm, his)
    return there == len(ARMS)


def _check(result: Result, arm: str, his: Cell) -> None:
    """Whether both read the same prompts."""
    from bench.trl import accuracy  # loads torch

    same = his["prompts"] == accuracy.prompts(ours.recipe(), theirs.rows(ours.recipe(), len(his["seconds"])))
    result.notes.append(f"{arm}: TRL's prompts are {'the same token ids as ours' if same else 'OTHER token ids than ours'}")


def _learning(result: Result, cells: Cells, sweep: Mapping[str, Cell]) -> bool:
    """The whole quick start by each seed: how soon it is good, and how good it is. Whether both sides are there."""
    pairs: list[tuple[Cell, Cell]] = []
    best: list[str] = []  # TRL's best with the first seed is what learns with the others
    for seed in SEEDS:
        own = cells.get(f"learning/{seed}/banyan", lambda seed=seed: ours.learn(seed, EVERY))  # type: ignore[misc]
        learned, whole = _learned(cells, sweep, seed, best)
        for name, cell in learned.items():
            result.notes.append(f"learning, seed {seed}: TRL {name}: {cell['accuracy']}")
        if not own or not whole:
            break
        result.notes.append(f"learning, seed {seed}: Banyan: {own['accuracy']}")
        best = [figures.soonest(learned)]
        pairs.append((learned[best[0]], own))
        figures.add_learning(result, f"learning, seed {seed}", *pairs[-1])
    figures.add_ends(result, pairs)
    return len(pairs) == len(SEEDS)


def _learned(cells: Cells, sweep: Mapping[str, Cell], seed: int, best: list[str]) -> tuple[dict[str, Cell], bool]:
    """TRL's variants with a seed, and whether all are there."""
    recipe = ours.recipe(f"seed={seed}")
    learn = partial(theirs.learn, recipe, steps=recipe.budget.steps, every=EVERY)
    learned: dict[str, Cell] = {}
    for _ in range(2):  # the second look knows how the first variant did
        names = best or figures.learners(sweep, learned)
        learned = _cells(cells, f"learning/{seed}/trl", learn, [_named(name) for name in names])
    return learned, len(learned) == len(best or figures.learners(sweep, learned))


def _named(name: str) -> Variant:
    return next(v for v in VARIANTS if v.name == name)


def _report_sweep(result: Result, sweep: Mapping[str, Cell]) -> None:
    for name, cell in sweep.items():
        chosen = " CHOSEN" if len(sweep) == len(VARIANTS) and name == figures.best(sweep) else ""
        result.add(f"sweep: TRL {name}, {SWEEP_STEPS} steps", figures.steady(cell), "s", chosen.strip())


def _settings(result: Result, sweep: Mapping[str, Cell]) -> None:
    """Both environments, and every setting side by side."""
    recipe = ours.recipe()
    for line in mapping.lines(recipe):
        trl = ", ".join(f"{name}={value!r}" for name, value in line.trl.items())
        result.notes.append(f"{line.field} {line.value!r}: TRL {trl or '-'}" + (f" ({line.says})" if line.says else ""))
    result.notes.append("TRL's own: " + ", ".join(f"{name}={value!r}" for name, value in mapping.OWN.items()))
    said = {name: version(name) for name in PACKAGES} | {"python": sys.version.split()[0]}
    result.notes.append("Banyan: " + ", ".join(f"{name} {number}" for name, number in said.items()))
    result.notes.append("both: " + ", ".join(f"{name}={os.environ.get(name, '')}" for name in torchenv.SETTINGS))
    for cell in list(sweep.values())[:1]:
        result.notes.append("TRL: " + ", ".join(f"{name} {number}" for name, number in cell["versions"].items()))
        result.notes.append(f"TRL: {cell['threads']} threads, {cell['environment']}")
