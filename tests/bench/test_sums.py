"""What the experiment `sums` chooses from measured runs, and what its table says of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from banyan.recipe_loader.load import load as load_recipe
from bench.pages import tables
from bench.sums import measure, protocol
from bench.sums.arms import ARMS, HELD_OUT, TOKENS, forks, recipe
from bench.sums.protocol import CAP, GRID, RATES, RIVAL, SEEDS, SHAPE, TREES, TRIED, TUNING, Wanted
from bench.sums.table import table
from bench.trees import course
from bench.trees.arms import Setting
from services.gateway.tasks import load, split

WHAT = ("sampled", "prefilled", "trained", "updates", "positions", "processor_s", "seconds")


def cells(costs: Callable[[Wanted], float | None]) -> protocol.Get:
    """Return runs that got there after so many tokens; None for those that are missing."""

    def get(wanted: Wanted) -> dict[str, Any] | None:
        cost = costs(wanted)
        if cost is None:
            return None
        ends = [{"accuracy": a, **dict.fromkeys(WHAT, x)} for a, x in ((0.95, cost), (0.96, CAP))]
        return {"points": ends, "cap": CAP}

    return get


def test_the_rows_are_those_of_the_quick_start() -> None:
    quick = load_recipe(Path(__file__).parents[2] / "recipes" / "quickstart.yaml").task
    ours = recipe(ARMS[RIVAL], Setting(8, 8, 1e-5), 0).task
    assert ours == quick
    assert len(split(load(ours, Path()), ours).held_out) == HELD_OUT


def test_forks_lie_inside_the_answer_and_fill_its_tree() -> None:
    for leaves in (4, 8, 16):
        settings = forks(leaves)["settings"]
        assert 2 ** (settings["max_depth"] - 1) == leaves
        assert settings["segment"] * settings["max_depth"] <= TOKENS


@pytest.mark.parametrize("cheaper", TREES)
def test_the_cheapest_rate_of_the_cheaper_trees_is_reported(cheaper: str) -> None:
    def cost(wanted: Wanted) -> float:
        if wanted.arm.name == cheaper:
            return 2000 if wanted.setting.rate == TRIED[cheaper][-1] else 2500
        return 3000 if wanted.setting.rate == RATES[0] else 4000

    runs = list(protocol.reported(cells(cost)))
    assert [(w.arm.name, w.seed) for w in runs] == [(a, s) for s in SEEDS for a in (RIVAL, cheaper)]
    rates = {(RIVAL, RATES[0]), (cheaper, TRIED[cheaper][-1])}
    assert {(w.arm.name, w.setting.rate) for w in runs} == rates
    assert not set(SEEDS) & set(TUNING)


def test_all_arms_have_equal_leaves_and_trees_no_more_rates_than_the_rival() -> None:
    for arm in (RIVAL, *TREES):
        settings = [wanted.setting for wanted in protocol.tuning(arm)]
        assert {(s.groups, s.leaves) for s in settings} == {SHAPE}
        assert {s.rate for s in settings} <= set(TRIED[RIVAL])


def test_nothing_is_chosen_or_reported_while_runs_are_missing() -> None:
    missing = (TREES[0], RATES[0], TUNING[1])

    def cost(wanted: Wanted) -> float | None:
        return None if (wanted.arm.name, wanted.setting.rate, wanted.seed) == missing else 5000

    get = cells(cost)
    assert protocol.tuned(TREES[0], get) is None and protocol.tree(get) is None
    assert {wanted.arm.name for wanted in protocol.reported(get)} == {RIVAL}


def test_the_table_has_ratios_of_what_was_spent_with_a_bar_for_their_lower_bounds() -> None:
    def cost(wanted: Wanted) -> float:
        return (1 if wanted.arm.name == TREES[0] else 2) * (1000 + wanted.seed)

    rows = {what: (figure, bar) for what, figure, _, bar in table(cells(cost)).rows}
    of = f"sampled tokens of {RIVAL} over those of {TREES[0]}"
    assert rows[of][0] == pytest.approx(2)
    low, bar = rows[f"{of}, lower bound"]
    assert 1.9 < low < 2 and bar == "above 1"
    headlines = {line.what: line for line in table(cells(cost)).table().headline}
    assert headlines[f"{of}, lower bound"].met is True
    assert rows[f"{TREES[0]}, 8 × 8 @ 1e-05: sampled tokens"][0] == pytest.approx(1002, abs=0.1)


def test_trees_that_do_not_answer_stay_in_the_table_without_a_bar() -> None:
    def cost(wanted: Wanted) -> float | None:
        if wanted.arm.name == TREES[1] and wanted.seed in SEEDS[2:]:
            return None  # stopped when others answered
        return {RIVAL: 4000, TREES[0]: 1000}.get(wanted.arm.name, 2000) + wanted.seed

    rows = {what: (figure, unit) for what, figure, unit, _ in table(cells(cost)).rows}
    for tree, ratio, runs in ((TREES[0], 4, 5), (TREES[1], 2, 2), (TREES[2], 2, 5)):
        of = f"sampled tokens of {RIVAL} over those of {tree}"
        assert rows[of][0] == pytest.approx(ratio, rel=0.01)
        assert (f"{of}, lower bound" in rows) == (tree == TREES[0])
        (count,) = [f for what, (f, _) in rows.items() if tree in what and "got there" in what]
        assert count == runs


def test_a_lower_bound_of_one_misses_the_bar() -> None:
    headlines = {h.what: h for h in table(cells(lambda wanted: 5000)).table().headline}
    of = f"sampled tokens of {RIVAL} over those of {TREES[0]}, lower bound"
    assert headlines[of].met is False


def test_a_run_that_never_got_there_makes_the_ratio_a_bound() -> None:
    def get(wanted: Wanted) -> dict[str, Any] | None:
        cell = cells(lambda wanted: 5000)(wanted)
        if cell is not None and wanted.arm.name == RIVAL and wanted.seed == 3:
            cell["points"] = [point | {"accuracy": 0.5} for point in cell["points"]]
        return cell

    rows = {what: bar for what, _, _, bar in table(get).rows}
    assert "a bound" in rows[f"sampled tokens of {RIVAL} over those of {TREES[0]}"]
    (there,) = [bar for what, bar in rows.items() if RIVAL in what and "got there" in what]
    assert there == "of 5"


def test_the_kept_cells_have_the_recorded_rows() -> None:
    recorded, made = tables()["sums"], table(measure.cells(measures=False).get)
    assert [[r[0], *r[2:]] for r in made.rows] == [[r[0], *r[2:]] for r in recorded.rows]
    assert [r[1] for r in made.rows] == pytest.approx([r[1] for r in recorded.rows])
    assert list(made.notes) == list(recorded.notes)


def test_a_run_is_measured_as_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "InProcess", lambda recipe: recipe)
    monkeypatch.setattr(course, "run", lambda run, cap, **more: {"run": run, "cap": cap, **more})
    wanted = Wanted(ARMS["forks-rose"], Setting(*SHAPE, RATES[0]), 3)
    bounds = wanted.measure()
    run = bounds.pop("run")
    assert run == recipe(wanted.arm, wanted.setting, 3) and run.seed == 3
    assert bounds == {"cap": CAP, "grid": GRID, "few": 0}
    parts = run.model_dump(mode="json", exclude_defaults=True)
    assert wanted.asked() == {"cap": CAP, "grid": GRID, "recipe": parts}


def test_processor_seconds_are_those_of_the_cells() -> None:
    def get(wanted: Wanted) -> dict[str, Any] | None:
        cell = cells(lambda wanted: 5000)(wanted)
        seconds = 30.0 if wanted.arm.name == RIVAL else 10.0
        return cell and {**cell, "points": [p | {"processor_s": seconds} for p in cell["points"]]}

    rows = {what: figure for what, figure, _, _ in table(get).rows}
    of = f"of {RIVAL} over those of {TREES[0]}"
    assert rows[f"processor seconds {of}"] == pytest.approx(3)
    assert rows[f"sampled tokens {of}"] == pytest.approx(1)


def test_the_recipe_of_an_arm_has_its_estimator_its_leaves_and_all_held_out_rows() -> None:
    credit = {RIVAL: "grpo", "forks-rose": "rose", "forks-grpo": "grpo", "eptree": "treerl"}
    for name, arm in ARMS.items():
        for leaves in (4, 8, 16):
            made = recipe(arm, Setting(8, leaves, 3e-5), 1)
            assert (made.optimise.advantage, made.optimise.learning_rate) == (credit[name], 3e-5)
            assert made.eval.max_rows == HELD_OUT and made.generate.trees == 1
            settings = made.generate.settings
            grown = settings.get("width") or settings["chains"] * (1 + settings["forks"])
            assert grown == leaves


def test_all_that_the_table_reads_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    there, asked = cells(lambda wanted: 5000), set[str]()

    class Fake:
        def __init__(self, measures: bool) -> None:
            self.measures = measures

        def get(self, wanted: Wanted) -> Any:
            if self.measures:
                asked.add(wanted.name)
            return there(wanted)

    monkeypatch.setattr(measure, "cells", lambda *, measures: Fake(measures))
    measure.everything()
    wanted = [w for arm in (RIVAL, *TREES) for w in protocol.tuning(arm)]
    assert asked == {w.name for w in (*wanted, *protocol.reported(there))}


def test_a_run_that_never_got_there_is_not_counted_and_shows_its_last_accuracy() -> None:
    def get(wanted: Wanted) -> dict[str, Any] | None:
        cell = cells(lambda wanted: 5000)(wanted)
        if cell is not None and wanted.arm.name == RIVAL and wanted.seed == 3:
            low, high = cell["points"]
            cell["points"] = [low | {"accuracy": 0.2}, high | {"accuracy": 0.5}]
        return cell

    rows = {what: figure for what, figure, _, _ in table(get).rows if RIVAL in what}
    (there,) = [figure for what, figure in rows.items() if "got there" in what]
    (last,) = [figure for what, figure in rows.items() if "at the end" in what]
    assert there == 4
    assert last == pytest.approx((4 * 96 + 50) / 5)
