"""What growth in one process took, and what was trained on, counted by hand."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.recipe import Recipe
from bench.trees import policy
from bench.trees import process as module
from bench.trees.process import Counts, InProcess
from tests.faults.harness import tiny_model

GROUPS, LEAVES, TOKENS = 2, 4, 8
ANSWER = {"": {"1": 0.5, " ": 0.5}}


def _process(folder: Path, **changes: Any) -> InProcess:
    """Return a run of trees that fork in two at the prompt and in the middle of their answers."""
    policy.tokenizer_in(tiny_model(folder))
    settings = {"width": LEAVES, "segment": TOKENS // 2, "max_depth": 2}
    parts = {
        "name": "counted",
        "model": str(folder),
        "task": {"name": "chains-mod", "size": 40, "config": {"operations": 3}},
        "generate": {"policy": "treepo-eager", "settings": settings, "max_new_tokens": TOKENS},
        "control": {"groups_per_batch": GROUPS},
        "filter": [{"name": "length", "settings": {"most": 1, "buffer": 9, "unit": "words"}}],
        "resources": {"engine": "scripted", "engine_settings": {"chain": ANSWER}},
    }
    return InProcess(Recipe.model_validate(parts | changes))


def test_a_step_counts_what_growth_and_training_took(tmp_path: Path) -> None:
    """Trees of 2 + 4 segments of 4 tokens, behind a prompt of 14. The first token of a segment
    comes with its prefix; the others take steps, of all 2 × 2 branches or all 2 × 4.
    """
    process = _process(tmp_path / "model")
    counts = process.step(0)
    assert (counts.sampled, counts.leaves) == (GROUPS * (2 + 4) * 4, GROUPS * LEAVES)
    assert (counts.positions, counts.branches) == (3 + 3, 3 * GROUPS * 2 + 3 * GROUPS * 4)
    assert counts.trained == GROUPS * (14 + (2 + 4) * 4)
    assert counts.path == GROUPS * LEAVES * TOKENS
    whole = Counts()
    whole.add(counts)
    whole.add(process.sample(1))
    assert (whole.sampled, whole.positions, whole.trained) == (96, 12, counts.trained)


def test_processor_seconds_are_those_of_growth_and_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, clock = _process(tmp_path / "model"), itertools.count(0.0, 700.0)
    watch = SimpleNamespace(process_time=lambda: next(clock), perf_counter=time.perf_counter)
    monkeypatch.setattr(module, "time", watch)
    counts = process.step(0)
    assert counts.processor_s == 700.0 and counts.growing_s < 700.0


def test_tokens_of_dropped_paths_are_sampled_tokens(tmp_path: Path) -> None:
    parts = {
        "generate": {
            "policy": "arrol",
            "settings": {"width": LEAVES, "detect": 3},
            "max_new_tokens": TOKENS,
        },
        "optimise": {"advantage": "grpo", "head": {"cold_steps": 1}},
    }
    process = _process(tmp_path / "model", **parts)
    counts = process.sample(0)
    dropped = GROUPS * LEAVES - counts.leaves
    assert dropped == 4
    assert counts.sampled == counts.leaves * TOKENS + dropped * 3


def test_what_is_silent_goes_to_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimise = {"loss": "reinforce", "loss_settings": {"count_silent": True}}
    alike = [{"name": "length", "settings": {"most": 99, "buffer": 9, "unit": "words"}}]
    process = _process(tmp_path / "model", optimise=optimise, filter=alike)
    seen = list[Any]()
    monkeypatch.setattr(process._trainer, "step", lambda *given: seen.extend(given))
    process.step(0)
    assert process.update is not None
    assert seen[3] == process.update.lesson.silent and seen[3].paths > 0
