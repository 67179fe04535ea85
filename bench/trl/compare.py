"""Cells of the comparison in order, each in new processes, one after the other; then the table.

Compared sides are timed in one cell, so in one call: first TRL, then ours. Every cell is kept raw,
in bench/kept/trl.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

from banyan.runtime import torch_environment
from bench.harness.kept import FOLDER, Cell, Kept
from bench.harness.table import Result
from bench.trl import alone, figures, mapping, naive, ours, theirs
from bench.trl.mapping import MICROS, VARIANTS, Variant

STEPS = int(os.environ.get("BENCH_STEPS", "11"))  # of an arm; the first warms up
SEEDS = tuple(range(int(os.environ.get("BENCH_SEEDS", "3"))))
EVERY = 2
KEPT = FOLDER / "trl"
ARMS = {"same-work": "varied", "as-shipped": "task"}
MINUTES = {
    "sweep": 3.5,
    "rows": 1.0,
    "same-work": 4.5,
    "as-shipped": 4.5,
    "sharing": 2.5,
    "learning": 14.0,
}
"""Minutes of a cell of a kind on two idle cores, roughly, for planning."""
PACKAGES = ("torch", "transformers", "numpy", "grpcio", "nats-py", "sqlalchemy")


class Cells:
    """Cells by kind; each is measured in this call if missing and wanted."""

    def __init__(self, only: list[str]) -> None:
        self._kept = Kept(KEPT, only)
        self.found: dict[str, Cell] = {}
        self.missing: list[str] = []

    def sweep(self) -> dict[str, Cell]:
        """Return TRL's variants, by name."""
        fitting = [v for v in VARIANTS if v.micro <= mapping.batch(ours.recipe())]
        cells: dict[str, Cell | None] = {}
        for variant in fitting:
            measure = partial(theirs.run, ours.recipe(), variant, STEPS, "varied")
            cells[variant.name] = self._get(f"sweep/{variant.name}", measure)
        return _there(cells)

    def rows(self) -> dict[str, Cell]:
        """Return our runs with sequences of so many paths."""
        cells: dict[str, Cell | None] = {}
        for paths in (n for n in MICROS if n <= mapping.batch(ours.recipe())):

            def measure(paths: int = paths) -> Cell:
                tokens = ours.row_tokens(paths)
                cell = ours.short(STEPS, "varied", f"optimise.tokens_per_row={tokens}")
                return {"tokens_per_row": tokens} | cell

            cells[str(paths)] = self._get(f"rows/{paths}", measure)
        return _there(cells)

    def arm(self, arm: str, chosen: Variant) -> Cell | None:
        """Return TRL's best and ours, a few steps each."""
        recipe, reward = ours.recipe(), ARMS[arm]

        def measure() -> Cell:
            his = theirs.run(recipe, chosen, STEPS, reward)
            return _together(trl=his, banyan=ours.short(STEPS, reward))

        return self._get(arm, measure, chosen.name)

    def sharing(self) -> Cell | None:
        """Return our runs with shared prompts and without."""
        return self._get("sharing", lambda: alone.measured(STEPS))

    def learning(self, seed: int, name: str) -> Cell | None:
        """Return the whole arithmetic recipe: TRL's by one variant, the naive loop's, and ours."""
        recipe = ours.recipe(f"seed={seed}")
        steps = recipe.budget.steps

        def measure() -> Cell:
            return _together(
                trl=theirs.learn(recipe, _named(name), steps, EVERY),
                naive=naive.learn(recipe, steps, EVERY),
                banyan=ours.learn(seed, EVERY),
            )

        return self._get(f"learning/{seed}/{name}", measure, steps=steps)

    def _get(
        self, name: str, measure: Callable[[], Cell], variant: str = "", steps: int = STEPS
    ) -> Cell | None:
        asked: dict[str, Any] = {"steps": steps, "changes": list(ours.MORE)} | (
            {"variant": variant} if variant else {}
        )
        cell = self._kept.get(name, asked, measure)
        if cell is None:
            self.missing.append(name)
        else:
            self.found[name] = cell
        return cell


def _there(cells: Mapping[str, Cell | None]) -> dict[str, Cell]:
    return {name: cell for name, cell in cells.items() if cell is not None}


def _together(**sides: Cell) -> Cell:
    """Return sides that were timed one after the other.

    Raises RuntimeError if their models were given different prompts.
    """
    own = sides["banyan"]["prompts"]
    for side, cell in sides.items():
        if cell["prompts"] != own:
            raise RuntimeError(
                f"{side}'s prompts have the digest {cell['prompts']}, ours {own}: these are two "
                "jobs"
            )
    return sides


def run() -> Result:
    """Measure all missing cells, or those in BENCH_CELLS."""
    _plan()
    cells = Cells([name for name in os.environ.get("BENCH_CELLS", "").split(",") if name])
    result = Result("trl")
    sweep = cells.sweep()
    whole = len(sweep) == len([v for v in VARIANTS if v.micro <= mapping.batch(ours.recipe())])
    _report_sweep(result, sweep, whole)
    for paths, cell in cells.rows().items():
        row = f"{paths} paths a row of {cell['tokens_per_row']} tokens"
        result.add(f"sweep: Banyan, {row}", figures.steady(cell), "s", figures.spread(cell))
    shared = cells.sharing()
    if whole:
        _arms(result, cells, sweep, shared)
        _learning(result, cells, sweep)
    else:
        result.notes.append(
            "without all of the sweep there is no best of TRL's, and nothing is compared with it"
        )
    _about(result, cells)
    _settings(result, sweep)
    return result


def _plan() -> None:
    """Print the cells to measure, and their time."""
    sizes = {
        "sweep": len(VARIANTS),
        "rows": len(MICROS),
        "same-work": 1,
        "as-shipped": 1,
        "sharing": 1,
    }
    for kind, count in (sizes | {"learning": len(SEEDS) + 1}).items():
        print(
            f"  {kind}: {count} cells, about {MINUTES[kind]:g} minutes each ({STEPS} steps; "
            "learning is whole runs)",
            flush=True,
        )


def _arms(result: Result, cells: Cells, sweep: Mapping[str, Cell], shared: Cell | None) -> None:
    """Measure a few steps each of the same work, and as shipped."""
    chosen = _named(figures.best(sweep))
    for arm in ARMS:
        pair = cells.arm(arm, chosen)
        if pair is None:
            continue
        figures.add_arm(result, arm, pair["trl"], pair["banyan"])
        result.notes.append(
            f"{arm}: both models were given the same {pair['trl']['prompts_given']} prompts, row "
            "by row"
        )
        if arm == "same-work" and shared is not None:
            figures.add_sharing(result, arm, pair, shared)


def _learning(result: Result, cells: Cells, sweep: Mapping[str, Cell]) -> None:
    """Measure the whole recipe by each seed: when it stays good, and how good it ends."""
    runs: list[figures.Sides] = []
    best = ""  # TRL's best with the first seed is what learns with the others
    for seed in SEEDS:
        learned = dict(_learned(cells, sweep, seed, best))
        for name, cell in learned.items():
            for label, side in figures.sides(cell).items():
                shown = f"{label} {name}" if label == figures.TRL else label
                result.notes.append(f"learning, seed {seed}: {shown}: {side['accuracy']}")
        if not learned:
            break
        best = figures.soonest({name: cell["trl"] for name, cell in learned.items()})
        runs.append(figures.sides(learned[best]))
        figures.add_learning(result, f"learning, seed {seed}", runs[-1], sweep[best])
    figures.add_ends(result, runs)


def learnt() -> list[Cell]:
    """Return the kept cells of whole runs, seed by seed, of the variant that is TRL's best.

    Raises RuntimeError if one of them, or of the sweep, is missing.
    """
    cells = Cells(["nothing is measured"])
    sweep = cells.sweep()
    learned = dict(_learned(cells, sweep, SEEDS[0], "")) if not cells.missing else {}
    best = figures.soonest({name: cell["trl"] for name, cell in learned.items()}) if learned else ""
    found = [cells.learning(seed, best) for seed in SEEDS] if best else []
    if cells.missing:
        raise RuntimeError(f"missing: {', '.join(cells.missing)}; run python -m bench trl")
    return [cell for cell in found if cell is not None]


def _learned(
    cells: Cells, sweep: Mapping[str, Cell], seed: int, best: str
) -> Iterator[tuple[str, Cell]]:
    """Return TRL's variants with a seed, each with ours."""
    learned: dict[str, Cell] = {}
    for _ in range(2):  # the second pass knows the result of the first variant
        for name in [best] if best else figures.learners(sweep, learned):
            if name not in learned and (pair := cells.learning(seed, name)) is not None:
                learned[name] = pair["trl"]
                yield name, pair


def _named(name: str) -> Variant:
    return next(v for v in VARIANTS if v.name == name)


def _report_sweep(result: Result, sweep: Mapping[str, Cell], whole: bool) -> None:
    for name, cell in sweep.items():
        chosen = " CHOSEN" if whole and name == figures.best(sweep) else ""
        result.add(f"sweep: TRL {name}", figures.steady(cell), "s", figures.spread(cell) + chosen)


def _about(result: Result, cells: Cells) -> None:
    """Return commits and dates of the cells, and the missing ones."""
    for name, cell in cells.found.items():
        busy = ", ".join(f"{load:.1f}" for load in cell["load"])
        about = f"{cell['date']}, {cell['took_s']:.0f} s, load before and after {busy}"
        result.notes.append(f"cell {name}: {about}, commit {cell['commit']}")
    if len({cell["commit"] for cell in cells.found.values()}) > 1:
        result.notes.append("THE CELLS ARE OF SEVERAL COMMITS")
    if cells.missing:
        result.notes.append(f"not whole: without {', '.join(cells.missing)}; run it again for them")


def _settings(result: Result, sweep: Mapping[str, Cell]) -> None:
    """Return both environments, and every setting side by side."""
    recipe = ours.recipe()
    for line in mapping.lines(recipe):
        trl = ", ".join(f"{name}={value!r}" for name, value in line.trl.items())
        result.notes.append(
            f"{line.field} {line.value!r}: TRL {trl or '-'}"
            + (f" ({line.says})" if line.says else "")
        )
    result.notes.append(
        "TRL's own: " + ", ".join(f"{name}={value!r}" for name, value in mapping.OWN.items())
    )
    versions = {name: version(name) for name in PACKAGES} | {"python": sys.version.split()[0]}
    result.notes.append(
        "Banyan: " + ", ".join(f"{name} {number}" for name, number in versions.items())
    )
    result.notes.append(
        "both: "
        + ", ".join(f"{name}={os.environ.get(name, '')}" for name in torch_environment.SETTINGS)
    )
    for cell in list(sweep.values())[:1]:
        result.notes.append(
            "TRL: " + ", ".join(f"{name} {number}" for name, number in cell["versions"].items())
        )
        keeps = (
            "keeps freed memory, as our learner does"
            if cell["keeps_memory"]
            else "KEEPS NO FREED MEMORY"
        )
        result.notes.append(
            f"TRL: {cell['threads']} threads, {cell['environment']}, its C library {keeps}"
        )
