"""The order of the comparison: what is chosen, what is measured again, and when it is whole."""

from pathlib import Path
from typing import Any

import pytest

from banyan.recipe import Recipe
from bench.trl import accuracy, compare, ours, theirs
from bench.trl.mapping import Variant

SECONDS = {"float32+autocast/64": 18.0, "float32+autocast/8": 17.0, "bfloat16/64": 16.0, "bfloat16/8": 19.0}


def said(seconds: float, **more: Any) -> dict[str, Any]:
    told = {"seconds": [30.0, *[seconds] * 5], "tokens": [512] * 6, "prompts": "same", "threads": 2, "environment": {}}
    return told | {"versions": {"trl": "1.16.0"}} | more


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured, in order; nothing runs."""
    calls: list[str] = []

    def run(recipe: object, variant: Variant, steps: int, reward: str) -> dict[str, Any]:
        calls.append(f"trl {variant.name} {reward} {steps}")
        return said(SECONDS[variant.name])

    def learn(recipe: Recipe, variant: Variant, steps: int, every: int) -> dict[str, Any]:
        calls.append(f"trl learns {variant.name} {steps} seed {recipe.seed}")
        return said(SECONDS[variant.name], accuracy={2: 0.1, 4: 0.5 if variant.dtype == "bfloat16" else 0.95})

    def short(steps: int, reward: str) -> dict[str, Any]:
        calls.append(f"ours {reward} {steps}")
        return said(4.0)

    def own(seed: int, every: int) -> dict[str, Any]:
        calls.append(f"ours learns seed {seed}")
        return said(4.0, accuracy={2: 0.1, 4: 0.96})

    monkeypatch.setattr(compare, "PATH", tmp_path / "cells.json")
    monkeypatch.setattr(theirs, "run", run)
    monkeypatch.setattr(theirs, "learn", learn)
    monkeypatch.setattr(ours, "short", short)
    monkeypatch.setattr(ours, "learn", own)
    monkeypatch.setattr(accuracy, "prompts", lambda *_: "same")
    return calls


def test_trls_fastest_is_compared_and_float32_learns_too_where_it_must(measured: list[str]) -> None:
    rows = {what: (figure, bar) for what, figure, _, bar in compare.run().rows}
    assert [call for call in measured if "learns" not in call][4:] == [
        "trl bfloat16/64 varied 5", "ours varied 5", "trl bfloat16/64 task 5", "ours task 5",
    ]  # fmt: skip
    assert [call for call in measured if "trl learns" in call] == [
        "trl learns bfloat16/64 40 seed 0",
        "trl learns float32+autocast/8 40 seed 0",
        "trl learns float32+autocast/8 40 seed 1",
        "trl learns float32+autocast/8 40 seed 2",
    ]
    assert [call for call in measured if "ours learns" in call] == [f"ours learns seed {seed}" for seed in range(3)]
    assert rows["same-work: TRL / Banyan"] == (4.0, "bar: at least 3")
    assert rows["sweep: TRL bfloat16/64, 3 steps"][1] == "CHOSEN"
    assert rows["learning, seed 0: TRL / Banyan, seconds to 90%"][0] == pytest.approx((30 + 3 * 17) / (30 + 3 * 4))
    assert not compare.PATH.exists()


def test_a_bench_that_was_cut_goes_on_and_measures_nothing_twice(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_CELLS", "sweep,same-work")
    first = compare.run()
    assert len(measured) == 6 and compare.PATH.exists()
    assert "not whole: 6 cells so far; run it again for the others" in first.notes
    monkeypatch.delenv("BENCH_CELLS")
    compare.run()
    assert len(measured) == len(set(measured)) == 15
    assert not compare.PATH.exists()
