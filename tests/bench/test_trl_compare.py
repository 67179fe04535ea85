"""Order of the comparison: the choice, common timing, repeated measurement, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from banyan.recipe import Recipe
from bench.harness import kept
from bench.trl import alone, compare, naive, ours, theirs
from bench.trl.mapping import Variant

SECONDS = {"float32+autocast/8": 17.0, "bfloat16/64": 16.5, "bfloat16/16": 16.0}  # of the others 18


def said(seconds: float, **more: Any) -> dict[str, Any]:
    reported = {
        "seconds": [30.0, *[seconds] * 5],
        "tokens": [512] * 6,
        "prompts": "same",
        "prompts_given": 88,
    }
    about = {
        "threads": 2,
        "environment": {},
        "keeps_memory": True,
        "versions": {"trl": "1.16.0"},
        "held_out": 44,
    }
    return reported | about | more


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the measured cells, in order; nothing runs."""
    calls: list[str] = []

    def run(recipe: object, variant: Variant, steps: int, reward: str) -> dict[str, Any]:
        calls.append(f"trl {variant.name} {reward} {steps}")
        return said(SECONDS.get(variant.name, 18.0))

    def learn(recipe: Recipe, variant: Variant, steps: int, every: int) -> dict[str, Any]:
        calls.append(f"trl learns {variant.name} {steps} seed {recipe.seed}")
        end = 0.5 if variant.dtype == "bfloat16" else 0.95
        return said(SECONDS.get(variant.name, 18.0), accuracy={2: 0.91, 4: 0.1, 6: end})

    def short(steps: int, reward: str, *changes: str) -> dict[str, Any]:
        calls.append(" ".join([f"ours {reward} {steps}", *changes]))
        return said(4.0)

    def own(seed: int, every: int) -> dict[str, Any]:
        calls.append(f"ours learns seed {seed}")
        return said(4.0, accuracy={2: 0.1, 4: 0.96, 6: 0.96})

    def looped(recipe: Recipe, steps: int, every: int) -> dict[str, Any]:
        calls.append(f"naive learns {steps} seed {recipe.seed}")
        return said(8.0, accuracy={2: 0.1, 4: 0.96, 6: 0.96})

    def ways(steps: int) -> dict[str, Any]:
        calls.append(f"sharing {steps}")
        return {"shared": said(4.0), "alone": said(8.0)}

    monkeypatch.setattr(compare, "KEPT", tmp_path)
    monkeypatch.setattr(kept, "commit_of", lambda *folders: "abc")
    monkeypatch.setattr(theirs, "run", run)
    monkeypatch.setattr(theirs, "learn", learn)
    monkeypatch.setattr(ours, "short", short)
    monkeypatch.setattr(ours, "learn", own)
    monkeypatch.setattr(naive, "learn", looped)
    monkeypatch.setattr(ours, "row_tokens", lambda paths: 10 * paths)
    monkeypatch.setattr(alone, "measured", ways)
    return calls


def test_trls_fastest_is_compared_and_float32_learns_too_where_it_must(measured: list[str]) -> None:
    result = compare.run()
    rows = {what: (figure, bar) for what, figure, _, bar in result.rows}
    micros = (64, 32, 16, 8)
    assert measured == [
        *(f"trl float32+autocast/{micro} varied 11" for micro in micros),
        *(f"trl bfloat16/{micro} varied 11" for micro in micros),
        *(f"ours varied 11 optimise.tokens_per_row={10 * micro}" for micro in micros),
        "sharing 11",
        "trl bfloat16/16 varied 11",
        "ours varied 11",
        "trl bfloat16/16 task 11",
        "ours task 11",
        "trl learns bfloat16/16 40 seed 0",
        "naive learns 40 seed 0",
        "ours learns seed 0",
        "trl learns float32+autocast/8 40 seed 0",
        "naive learns 40 seed 0",
        "ours learns seed 0",
        "trl learns float32+autocast/8 40 seed 1",
        "naive learns 40 seed 1",
        "ours learns seed 1",
        "trl learns float32+autocast/8 40 seed 2",
        "naive learns 40 seed 2",
        "ours learns seed 2",
    ]
    assert rows["same-work: TRL / Banyan"] == (4.0, "bar: at least 3")
    assert rows["sweep: TRL bfloat16/16"][1].endswith("CHOSEN")
    assert rows["sharing: prompts alone / shared"][0] == 2.0
    until = rows["learning, seed 0: TRL / Banyan, seconds until it stays"]
    assert until[0] == pytest.approx((30 + 5 * 17) / (30 + 3 * 4))
    assert rows["learning: TRL / Banyan, seconds until it stays, median of seeds"][1].endswith(
        "3 of 3 seeds: 2.74, 2.74, 2.74"
    )
    assert not any(note.startswith("not whole") for note in result.notes)


def test_a_bench_that_was_cut_goes_on_and_measures_nothing_twice(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_CELLS", "sweep,same-work")
    first = compare.run()
    assert len(measured) == 10
    missing = next(note for note in first.notes if note.startswith("not whole"))
    assert "rows/64" in missing and "as-shipped" in missing and "learning/0/bfloat16/16" in missing
    monkeypatch.delenv("BENCH_CELLS")
    compare.run()
    compare.run()
    assert len(measured) == 8 + 4 + 1 + 2 * 2 + 4 * 3


def test_raw_cells_stay_with_all_sides_in_one(measured: list[str]) -> None:
    compare.run()
    cell = json.loads((compare.KEPT / "learning-1-float32+autocast-8.json").read_text())
    assert cell["commit"] == "abc" and cell["asked"] == {"steps": 40, "changes": []}
    assert [cell[side]["seconds"][1] for side in ("trl", "naive", "banyan")] == [17.0, 8.0, 4.0]


def test_arms_with_other_prompts_are_no_cell(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "short", lambda *_: said(4.0, prompts="other"))
    monkeypatch.setenv("BENCH_CELLS", "sweep,same-work")
    with pytest.raises(RuntimeError, match="these are two jobs"):
        compare.run()
    assert not (compare.KEPT / "same-work.json").exists()
