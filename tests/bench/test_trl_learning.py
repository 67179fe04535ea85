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
        "load": [0.5, 2.0],
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
    assert [line.figure for line in made.headline] == [line.figure for line in recorded.headline]


def test_a_row_has_each_sides_way_and_its_ratio_to_ours() -> None:
    made = learning.table([cell(1.0, 5.0), cell(2.0, 5.0), cell(4.0, 5.0)])
    assert made.rows[3:6] == [
        [
            "1",
            "TRL",
            "step 4, 40.0 s",
            "**10.00**",
            "step 4, 40.0 s (first at step 4)",
            "**10.00**",
            "96.0 %",
            "10.00 s",
        ],
        [
            "1",
            "naive loop",
            "step 4, 20.0 s",
            "**5.00**",
            "step 4, 20.0 s (first at step 4)",
            "**5.00**",
            "96.0 %",
            "5.00 s",
        ],
        [
            "1",
            "Banyan",
            "step 2, 4.0 s",
            "–",
            "step 2, 4.0 s (first at step 2)",
            "–",
            "97.0 %",
            "2.00 s",
        ],
    ]
    assert [(line.figure, line.target, line.met) for line in made.headline] == [
        ("10.00 times", "at least 4", True),
        ("5.00 times", "none", None),
        ("10.00 times", "at least 4", True),
        ("5.00 times", "none", None),
        ("97.0 % against TRL's 96.0 %", "no worse", True),
    ]
    assert made.machine.endswith(", load 0.5 to 2.0")
    until = "10.00 until two measurements in a row are at 90 %; 10.00 until it stays at 90 % to"
    assert until in made.notes[0] and " (target: at least 4)." in made.notes[0]
    assert "5.00 until two" in made.notes[1] and " to its end. The median " in made.notes[1]


def test_a_note_says_how_the_medians_differ_from_the_median_of_ratios() -> None:
    made = learning.table([cell(1.0, 5.0), cell(2.0, 10.0), cell(4.0, 5.0)])
    assert "naive loop over those of Banyan, medians of the seeds: 10.00 until" in made.notes[1]
    assert made.notes[1].endswith("is 5.00 times that of Banyan's (twice in a row).")


def test_a_run_that_does_not_stay_has_no_ratio() -> None:
    poor = cell()
    poor["trl"] = side(10.0, {"2": 0.95, "4": 0.5})
    made = learning.table([poor, cell()])
    assert made.rows[0][2:6] == ["never", "–", "does not stay (first at step 2)", "–"]
    assert all("2 seeds: TRL does not, 20.00" in line.what for line in made.headline[:2])
    assert [line.figure for line in made.headline[:2]] == ["20.00 times"] * 2
    assert all(line.met for line in made.headline[:2])
    alone = learning.table([poor])
    assert [(line.figure, line.met) for line in alone.headline[:2]] == [("TRL does not", True)] * 2


def test_a_run_that_was_there_and_fell_at_its_end_was_there_twice_in_a_row() -> None:
    fallen = cell(2.0)
    fallen["banyan"] = side(2.0, {"2": 0.91, "4": 0.8, "6": 0.9, "8": 0.9, "10": 0.88})
    made = learning.table([fallen])
    ours = made.rows[1]
    assert (ours[2], ours[4]) == ("step 6, 12.0 s", "does not stay (first at step 2)")
    twice, stays, _ = made.headline
    assert (twice.figure, twice.met, stays.figure, stays.met) == (
        "3.33 times",
        False,
        "Banyan does not",
        False,
    )


def test_a_seed_of_ours_that_does_not_stay_counts_as_lost() -> None:
    """Of 3 seeds one does not stay, one is 20 times as fast, one 5 times: the median is 5."""
    fallen = cell()
    fallen["banyan"] = side(1.0, {"2": 0.95, "4": 0.95, "6": 0.5})
    made = learning.table([fallen, cell(1.0), cell(4.0)])
    assert made.headline[1].what.endswith("median of 3 seeds: Banyan does not, 20.00, 5.00")
    assert made.headline[1].figure == "5.00 times"


@pytest.mark.parametrize("other", [cell(commit="def"), cell(naive=5.0)])
def test_cells_of_other_commits_or_sides_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="measure anew"):
        learning.table([cell(), other])


def test_of_two_seeds_the_worse_ratio_is_the_median() -> None:
    never = {"2": 0.5, "4": 0.5, "6": 0.5}
    ours_alone, theirs_alone = cell(), cell()
    ours_alone["trl"], theirs_alone["banyan"] = side(10.0, never), side(1.0, never)
    first, *_ = learning.table([ours_alone, theirs_alone]).headline
    assert (first.figure, first.met) == ("Banyan does not", False)


def test_as_accurate_at_the_end_is_no_worse() -> None:
    equal = cell()
    equal["banyan"] = side(1.0, ACCURACY["TRL"])
    assert learning.table([equal]).headline[-1].met is True
