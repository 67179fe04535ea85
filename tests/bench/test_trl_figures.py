"""Choice of TRL's best, ratios, seconds to an accuracy, and a missed bar in the table."""

from pathlib import Path
from typing import Any

import pytest

from bench.harness.cells import Cells
from bench.harness.curve import stays_from
from bench.harness.table import Result
from bench.trl import figures
from bench.trl.reward import varied


def cell(*seconds: float, **more: Any) -> dict[str, Any]:
    return {"seconds": list(seconds), "tokens": [512] * len(seconds), "held_out": 44, **more}


def test_the_best_is_the_fastest_after_the_first_step() -> None:
    sweep = {
        "slow": cell(1.0, 9.0, 9.0),
        "warm": cell(30.0, 8.0, 8.5),
        "equal": cell(2.0, 8.25, 8.25),
    }
    assert figures.best(sweep) == "warm"
    assert figures.steady(sweep["warm"]) == 8.25


@pytest.mark.parametrize(
    ("accuracy", "step"),
    [
        ({2: 0.5, 4: 0.91, 6: 0.89, 8: 0.9, 10: 0.95}, 8),
        ({2: 0.95, 4: 0.9}, 2),
        ({2: 0.95, 4: 0.96, 6: 0.89}, None),
        ({10: 0.95, 2: 0.92, 9: 0.2, 12: 0.99}, 10),
        ({}, None),
    ],
)
def test_a_run_stays_from_the_first_policy_after_the_last_that_was_below(
    accuracy: dict[int, float], step: int | None
) -> None:
    assert stays_from(accuracy, 0.9) == step


def test_seconds_count_all_steps_before_the_policy_from_which_a_run_stays() -> None:
    learned = cell(5.0, 4.0, 4.0, 4.0, 4.0, 4.0, accuracy={"2": 0.91, "4": 0.5, "6": 0.92})
    assert figures.reached(learned) == figures.Reached(6, 25.0, 0.92, 2)
    assert figures.reached(learned, 0.95) == figures.Reached(None, None, 0.92)
    assert figures.reached(learned, 0.5) == figures.Reached(2, 9.0, 0.92, 2, 2, 9.0)


def test_a_crossing_by_chance_is_not_learnt() -> None:
    assert figures.reached(
        cell(1.0, 1.0, 1.0, 1.0, accuracy={"2": 0.95, "4": 0.89})
    ) == figures.Reached(None, None, 0.89, 2)


def test_the_spread_is_the_middle_half_and_all_but_the_first_step() -> None:
    assert (
        figures.spread(cell(30.0, 1.0, 2.0, 3.0, 4.0, 5.0))
        == "middle half 2.00 to 4.00; 1.00 to 5.00, 5 steps"
    )
    assert figures.spread(cell(30.0, 1.0, 2.0)) == "1.00 to 2.00, 2 steps"


def test_an_arm_has_the_ratio_and_its_bar() -> None:
    result = Result("trl")
    figures.add_arm(result, "same-work", cell(20.0, 16.0, 16.0, 16.0), cell(6.0, 4.0, 4.0, 4.0))
    what, figure, unit, bar = result.rows[-1]
    assert (what, figure, unit, bar) == ("same-work: TRL / Banyan", 4.0, "x", "bar: at least 3")
    figures.add_arm(result, "as-shipped", cell(20.0, 14.0), cell(6.0, 4.0))
    assert result.rows[-1][3] == "bar: at least 4 MISSED"


def test_learning_says_who_is_there_first() -> None:
    ours = cell(4.0, 4.0, accuracy={"1": 0.8, "2": 0.93})
    theirs = cell(16.0, 16.0, accuracy={"1": 0.92, "2": 0.95})
    result = Result("trl")
    runs = {"TRL": theirs, "Banyan": ours}
    figures.add_learning(result, "learning, seed 0", runs, cell(1.0, 8.0))
    assert result.rows[-1][:2] == ("learning, seed 0: TRL / Banyan, seconds until it stays", 2.0)
    assert result.rows[-1][3].endswith("MISSED")
    rows = {what: (figure, bar) for what, figure, _, bar in result.rows}
    assert rows["learning, seed 0: TRL, training until it stays at 90% of 44 rows"] == (
        16.0,
        "step 1; first at 90%: step 1",
    )
    assert rows["learning, seed 0: TRL, a step of the run / of its sweep"][0] == 2.0


def test_both_are_measured_on_the_same_rows() -> None:
    theirs, ours = (cell(1.0, 1.0, accuracy={"2": 0.95}) for _ in range(2))
    with pytest.raises(RuntimeError, match="TRL was measured on 43 held-out rows, ours on 44"):
        runs = {"TRL": theirs | {"held_out": 43}, "Banyan": ours}
        figures.add_learning(Result("trl"), "learning", runs)


def test_what_is_shared_prompts_of_a_ratio() -> None:
    result = Result("trl")
    arms = {"trl": cell(9.0, 16.0, 16.0), "banyan": cell(9.0, 4.0, 4.0)}
    figures.add_sharing(
        result, "same-work", arms, {"shared": cell(9.0, 3.0, 3.0), "alone": cell(9.0, 6.0, 6.0)}
    )
    assert [row[1] for row in result.rows[-2:]] == [2.0, 2.0]
    assert result.notes == [
        "of the 4.00 times of same-work, sharing of prompts is a factor of 2.00; 2.00 is left"
    ]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((0.95, 0.93), "no worse than TRL's"), ((0.95, 0.9), "WORSE than TRL's")],
)
def test_the_ends_of_all_seeds_are_compared(ours: tuple[float, ...], verdict: str) -> None:
    theirs, result = (0.96, 0.92), Result("trl")
    ends = [[cell(1.0, 1.0, accuracy={"2": end}) for end in side] for side in (theirs, ours)]
    figures.add_ends(result, [{"TRL": his, "Banyan": own} for his, own in zip(*ends, strict=True)])
    ratio, end = result.rows[:2]
    assert ratio[:2] == ("learning: TRL / Banyan, seconds until it stays, median of seeds", 1.0)
    assert ratio[3] == "bar: at least 4 MISSED; 2 of 2 seeds: 1.00, 1.00"
    assert end == (
        "learning: TRL, held-out at the end, mean of seeds",
        pytest.approx(94.0),
        "%",
        "96.0, 92.0",
    )
    assert result.notes[-1] == f"learning: final accuracy is {verdict}, over 2 seeds"


def test_a_seed_that_does_not_stay_has_no_ratio_and_is_counted() -> None:
    result = Result("trl")
    good, poor = cell(1.0, 1.0, accuracy={"2": 0.95}), cell(1.0, 1.0, accuracy={"2": 0.5})
    figures.add_ends(result, [{"TRL": good, "Banyan": good}, {"TRL": poor, "Banyan": good}])
    assert result.notes[:2] == [
        "learning: TRL stays at 90% with 1 of 2 seeds",
        "learning: Banyan stays at 90% with 2 of 2 seeds",
    ]
    assert result.rows[0][3].endswith("1 of 2 seeds: 1.00")


def test_learning_without_an_end_has_no_ratio() -> None:
    result = Result("trl")
    runs = {
        "TRL": cell(16.0, 16.0, accuracy={"2": 0.5}),
        "Banyan": cell(4.0, 4.0, accuracy={"2": 0.95}),
    }
    figures.add_learning(result, "learning", runs)
    assert not any("seconds until" in row[0] for row in result.rows)
    assert "learning: TRL does not stay at 90% of 44 rows (first at 90%: step None)" in result.notes


def test_half_of_the_varied_rewards_are_1_whatever_is_said() -> None:
    assert varied(8) == [0.0, 1.0] * 4


def test_a_cell_is_measured_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "results" / "cells.json"
    calls: list[int] = []

    def measure() -> dict[str, Any]:
        calls.append(1)
        return {"x": 1}

    assert Cells(path, ["b"]).get("a/1", measure) is None
    first = Cells(path, ["a"]).get("a/1", measure)
    repeated = Cells(path).get("a/1", measure)
    assert first is not None and first["x"] == 1 and repeated == first and len(calls) == 1


@pytest.mark.parametrize(
    "figure, said", [(3.0, "bar: at least 3"), (2.99, "bar: at least 3 MISSED")]
)
def test_a_bar_is_met_from_its_value_on(figure: float, said: str) -> None:
    assert figures.verdict(figure, 3.0) == said


def test_the_fastest_learns_and_float32_too_where_bfloat16_did_not() -> None:
    sweep = {
        "bfloat16/64": cell(9.0, 1.0),
        "float32+autocast/64": cell(9.0, 3.0),
        "float32+autocast/8": cell(9.0, 2.0),
    }
    poor, good = cell(1.0, 1.0, accuracy={"2": 0.5}), cell(1.0, 1.0, accuracy={"2": 0.95})
    assert figures.learners(sweep, {}) == ["bfloat16/64"]
    assert figures.learners(sweep, {"bfloat16/64": good}) == ["bfloat16/64"]
    assert figures.learners(sweep, {"bfloat16/64": poor}) == ["bfloat16/64", "float32+autocast/8"]
    assert figures.learners({"float32+autocast/8": poor}, {"float32+autocast/8": poor}) == [
        "float32+autocast/8"
    ]


def test_the_one_that_was_there_first_is_trls_best() -> None:
    slow, quick = cell(9.0, 9.0, accuracy={"2": 0.95}), cell(1.0, 1.0, accuracy={"2": 0.92})
    never, nearly = cell(0.1, 0.1, accuracy={"2": 0.5}), cell(0.1, 0.1, accuracy={"2": 0.8})
    assert figures.soonest({"slow": slow, "quick": quick, "never": never}) == "quick"
    assert figures.soonest({"never": never, "nearly": nearly}) == "nearly"


def test_a_naive_loop_stands_beside_both_and_has_no_target() -> None:
    """Of two seeds; a cell without it has the other two."""
    cells = [
        {
            "banyan": cell(4.0, 4.0, accuracy={"1": 0.95, "2": 0.95}),
            "naive": cell(8.0, 8.0 * times, accuracy={"1": 0.5, "2": 0.95}),
            "trl": cell(16.0, 16.0, accuracy={"2": 0.95}),
        }
        for times in (1, 3)
    ]
    runs = [figures.sides(each) for each in cells]
    assert [*runs[0]] == ["TRL", "naive loop", "Banyan"]
    assert [*figures.sides({"banyan": {}, "trl": {}})] == ["TRL", "Banyan"]
    result = Result("trl")
    figures.add_learning(result, "seed 0", runs[0])
    figures.add_ends(result, runs)
    rows = {what: (figure, bar) for what, figure, _, bar in result.rows}
    assert rows["seed 0: naive loop / Banyan, a step"] == (2.0, "")
    assert rows["seed 0: naive loop / Banyan, seconds until it stays"] == (4.0, "")
    assert rows["learning: naive loop / Banyan, seconds until it stays, median of seeds"] == (
        6.0,
        "2 of 2 seeds: 4.00, 8.00",
    )
    assert rows["seed 0: TRL / Banyan, seconds until it stays"] == (8.0, "bar: at least 4")
    assert "learning: naive loop stays at 90% with 2 of 2 seeds" in result.notes
