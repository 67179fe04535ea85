"""Facts of a run's model, read from its folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from banyan.recipe_loader import load
from services.gateway.runs import model_facts
from services.gateway.runs.model_facts import NOTHING_KNOWN, ModelFacts


def _facts(folder: Path, config: dict[str, Any], engine: str = "torch") -> ModelFacts:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(b"{}")
    task = {"name": "arithmetic"}
    recipe = load.resolve(
        {"name": "r", "model": str(folder), "task": task, "resources": {"engine": engine}}
    )
    return model_facts.read(recipe)


@pytest.mark.parametrize("inner", [False, True])
def test_vocabulary_longest_path_and_tokenizer_are_read(tmp_path: Path, inner: bool) -> None:
    text = {"vocab_size": 100, "max_position_embeddings": 64}
    assert _facts(tmp_path / "m", {"text_config": text} if inner else text) == ModelFacts(
        100, 64, b"{}"
    )


def test_nothing_is_known_of_what_names_no_vocabulary_or_is_scripted(tmp_path: Path) -> None:
    assert _facts(tmp_path / "m", {"max_position_embeddings": 64}) == NOTHING_KNOWN
    assert _facts(tmp_path / "m", {"vocab_size": 100}) == ModelFacts(100, 0, b"{}")
    assert _facts(tmp_path / "m", {"vocab_size": 100}, "scripted") == NOTHING_KNOWN
