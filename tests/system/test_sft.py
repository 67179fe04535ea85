"""A run, a warm start from its successful paths, and a run from the warm start; and Ctrl-C."""

import json
import signal
import sqlite3
from pathlib import Path

import pytest
import yaml

from banyan.v1 import tree_pb2
from tests.system.joining import command
from tests.system.tiny import torch_recipe

pytestmark = pytest.mark.slow

LEAST = 0.5


def earned(state: Path) -> dict[tuple[str, int], float]:
    """Return the leaves of the run's training trees that earned enough, read from its database."""
    database = sqlite3.connect(f"file:{state / 'store.sqlite'}?mode=ro", uri=True)
    rows = database.execute(
        "select s.segment, s.end, s.value from scores s join segments g on g.id = s.segment"
        " join trees t on t.tree_id = g.tree_id where t.purpose = ? and s.value >= ?",
        (tree_pb2.TREE_PURPOSE_TRAIN, LEAST),
    ).fetchall()
    database.close()
    return {(segment.hex(), end): value for segment, end, value in rows}


async def test_a_run_teaches_a_warm_start_and_a_run_goes_on_from_it(tmp_path: Path) -> None:
    folder, state, warm = tmp_path / "recipe", tmp_path / "state", tmp_path / "warm"
    data = torch_recipe(folder) | {"budget": {"steps": 2, "minutes": 5.0}}
    data["task"]["holdout"] = 0.2
    (folder / "recipe.yaml").write_text(yaml.safe_dump(data))
    file = str(folder / "recipe.yaml")
    async with command(tmp_path / "1", "train", file, "--state", str(state)) as first:
        assert await first.ends() == 0, first.output
    database = sqlite3.connect(f"file:{state / 'store.sqlite'}?mode=ro", uri=True)
    (run_id,) = database.execute("select run_id from runs").fetchone()
    database.close()
    options = ("--state", str(state), "--at-least", str(LEAST), "--learning-rate", "1e-2")
    options = (*options, "--epochs", "6", "--batch-tokens", "256")
    async with command(
        tmp_path / "2", "sft", file, "--from", run_id[:-2], "--to", str(warm), *options
    ) as taught:
        assert await taught.ends() == 0, taught.output
    record = json.loads((warm / "sft.json").read_text())
    lines = [json.loads(line) for line in (warm / "sft_leaves.jsonl").read_text().splitlines()]
    assert {(leaf["segment"], leaf["end"]): leaf["reward"] for leaf in lines} == earned(state)
    assert record["source"]["run"] == run_id and record["source"]["leaves"] == len(lines) > 3
    assert record["loss"]["last_step"] < record["loss"]["first_step"]
    more = ("--set", f"model={warm}", "--set", "budget.steps=1", "--state", str(tmp_path / "next"))
    async with command(tmp_path / "3", "train", file, *more) as second:
        assert await second.ends() == 0, second.output
    kept = [path.name for path in (tmp_path / "next").rglob("step-*/*")]
    assert "model.safetensors" in kept and "sft.json" not in kept


async def test_ctrl_c_leaves_no_folder(tmp_path: Path) -> None:
    folder, warm = tmp_path / "recipe", tmp_path / "out" / "warm"
    file = folder / "recipe.yaml"
    data = torch_recipe(folder)
    file.write_text(yaml.safe_dump(data))
    rows = folder / "taught.jsonl"
    rows.write_text('{"prompt": "say 1", "completion": "1"}\n' * 50)
    fixed = ("--rows", str(rows), "--to", str(warm), "--steps", "100000")
    async with command(tmp_path / "1", "sft", str(file), *fixed) as taught:
        await taught.says(r"step 1 of 100000")
        taught.stop(signal.SIGINT)
        assert await taught.ends(30.0) == 130, taught.output
        assert "Traceback" not in taught.output
    assert not warm.parent.exists() or list(warm.parent.iterdir()) == []
