"""`banyan sft` as a person types it: its folder, its record, and one message for what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.cli.command import Said, banyan
from tests.cli.refusals import refused
from tests.cli.sft.chat_model import chat_model

CALL = "<calc>6 * 7</calc>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a recipe that has a calculator, and rows."""
    made = tmp_path_factory.mktemp("sft")
    chat_model(made / "model")
    recipe: dict[str, Any] = {
        "name": "warm",
        "model": str(made / "model"),
        "task": {"name": "products", "size": 20},
        "generate": {"policy": "turns"},
        "environment": {"name": "calculator"},
        "resources": {"dtype": "float32", "threads": 1},
    }
    (made / "warm.yaml").write_text(yaml.safe_dump(recipe))
    (made / "rows.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in range(20)))
    return made


def row(n: int) -> dict[str, Any]:
    said = (("assistant", CALL), ("tool", "42"), ("assistant", "42"))
    turns = [{"role": role, "content": text} for role, text in said]
    return {"prompt": f"What is 6 * 7? {n}", "completion": turns}


def sft(folder: Path, to: Path, *more: str | Path, rows: Path | None = None) -> Said[str]:
    fixed = ("--rows", rows or folder / "rows.jsonl", "--to", to, "--batch-tokens", "512")
    return banyan("sft", folder / "warm.yaml", *fixed, "--learning-rate", "1e-2", *more)


def test_the_record_says_what_the_weights_come_from_and_a_second_run_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    result = sft(folder, to, "--epochs", "4", "--json")
    assert result.returncode == 0, result.stderr
    record = json.loads((to / "sft.json").read_text())
    assert {**record, "weights": None} == {**json.loads(result.stdout), "weights": None}
    assert record["source"]["count"] == 20 and len(record["source"]["blake2b"]) == 128
    assert record["examples"] == {"trained": 18, "held_out": 2}
    loss = record["loss"]
    assert loss["measured_on"] == "held-out" and loss["after"] < 0.8 * loss["before"]
    assert record["held_out_tokens"] == 2 * (len(CALL) + len("42") + 1)
    names = {path.name for path in to.iterdir()}
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"} <= names
    assert json.loads((to / "config.json").read_text())["dtype"] == "float32"
    refused(sft(folder, to), f"--to {to} exists", "--force")
    again = sft(folder, to, "--steps", "1", "--force", "--holdout", "0", "--seed", "3")
    assert again.returncode == 0 and "training loss" in again.stdout, again.stderr
    assert json.loads((to / "sft.json").read_text())["settings"]["seed"] == 3


def test_a_seed_repeats_the_weights(folder: Path, tmp_path: Path) -> None:
    tensors = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert sft(folder, tmp_path / name, "--steps", "2", "--seed", seed).returncode == 0
        tensors.append(load_file(tmp_path / name / "model.safetensors"))
    first, second, other = tensors
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_nothing_is_written_for_rows_that_cannot_be_learned(folder: Path, tmp_path: Path) -> None:
    bad, to = tmp_path / "bad.jsonl", tmp_path / "out"
    long = row(1) | {"prompt": "x" * 600}
    for line, words in (
        (json.dumps({"prompt": "q"}), "needs `prompt` and `completion`"),
        (json.dumps(long), "tokens, and the model's context holds 512"),
        (json.dumps(row(1)).replace(CALL, "six times seven"), "does not end with '</calc>'"),
    ):
        bad.write_text(json.dumps(row(0)) + "\n" + line + "\n")
        refused(sft(folder, to, rows=bad), f"{bad} line 2", words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]


def test_the_source_must_be_one(folder: Path, tmp_path: Path) -> None:
    recipe, to = folder / "warm.yaml", tmp_path / "out"
    refused(banyan("sft", recipe, "--to", to), "either --rows FILE, or --from RUN")
    refused(sft(folder, to, "--from", "warm-1"), "either --rows FILE, or --from RUN")
    state = ("--state", tmp_path / "state")
    refused(banyan("sft", recipe, "--to", to, "--from", "warm-1", *state), "holds no store")
    refused(sft(folder, to, "--learning-rate", "0"), "--learning-rate 0 must be above 0")
    refused(sft(folder, to, "--set", "model=/nowhere"), "/nowhere")
    assert not to.exists()
