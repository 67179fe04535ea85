"""The recorded table of whole runs: its rows are those of the cells, and nothing is mixed."""

from typing import Any

import pytest

from bench.pages import tables
from bench.trl import compare, learning

ACCURACY = {"TRL": {"2": 0.5, "4": 0.95, "6": 0.96}, "ours": {"2": 0.95, "4": 0.95, "6": 0.97}}


def side(seconds: float, accuracy: dict[str, float]) -> dict[str, Any]:
    return {"seconds": [seconds] * 6, "accuracy": accuracy, "held_out": 44}


def cell(ours: float = 1.0, naive: float | None = None, commit: str = "abc") -> dict[str, Any]:
    made: dict[str, Any] = {
        "commit": commit,
        "date": "2026-01-01T00:00:00+00:00",
        "trl": side(10.0, ACCURACY["TRL"]),
        "banyan": side(ours, ACCURACY["ours"]),
    }
    if naive is not None:
        made["naive"] = side(naive, ACCURACY["TRL"])
    return made


def test_the_kept_cells_have_the_recorded_rows() -> None:
    recorded = tables()["trl/learning"]
    made = learning.table(compare.learnt())
    assert [list(row) for row in made.rows] == [list(row) for row in recorded.rows]
    assert made.headline[0].figure == recorded.headline[0].figure


def test_a_row_has_each_sides_way_and_its_ratio_to_ours() -> None:
    made = learning.table([cell(1.0, 5.0), cell(2.0, 5.0), cell(4.0, 5.0)])
    assert made.columns[:6] == [
        "",
        "TRL: stays at 90 % from",
        "naive loop: stays at 90 % from",
        "Banyan: stays at 90 % from",
        "seconds, TRL / Banyan",
        "seconds, naive loop / Banyan",
    ]
    assert made.rows[1][:6] == [
        "seed 1",
        "step 4, 40.0 s (first at step 4)",
        "step 4, 20.0 s (first at step 4)",
        "step 2, 4.0 s (first at step 2)",
        "**10.00**",
        "**5.00**",
    ]
    assert [(line.figure, line.target, line.met) for line in made.headline] == [
        ("10.00 times", "at least 4", True),
        ("5.00 times", "none", None),
        ("97.0 % against TRL's 96.0 %", "no worse", True),
    ]
    assert made.notes[0].endswith("TRL / Banyan, is 10.00 (target: at least 4).")
    assert made.notes[1].endswith("naive loop / Banyan, is 5.00.")


def test_a_run_that_does_not_stay_has_no_ratio() -> None:
    poor = cell()
    poor["trl"] = side(10.0, {"2": 0.95, "4": 0.5})
    made = learning.table([poor, cell()])
    assert made.rows[0][1] == "does not stay (first at step 2)" and made.rows[0][3] == "–"
    assert "median of 1 of 2 seeds: 20.00" in made.headline[0].what


@pytest.mark.parametrize("other", [cell(commit="def"), cell(naive=5.0)])
def test_cells_of_other_commits_or_sides_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="measure anew"):
        learning.table([cell(), other])
