"""Paths that act in a user's class, through all five services, and the check before a run."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from banyan.segment import Kind
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from tests.faults.audit import audit
from tests.faults.harness import recipe, system, tiny_model

STEPS = 2
CLASS = """
class Door:
    def __init__(self, code="ab"):
        self.code = code

    def reset(self, row):
        self.said = ""
        self.code = row.get("answer", self.code)

    def step(self, action):
        if action == "x":
            raise ValueError("no key x")
        self.said += action
        return self.said, float(action in self.code), self.said == self.code
"""
CHAIN = {
    "": {"a": 0.6, "b": 0.2, "x": 0.2},
    **{key: {"?": 1.0} for key in "abx"},
    " ": {"a": 0.2, "b": 0.6, "x": 0.2},
}


def acting(folder: Path) -> dict[str, Any]:
    """Return a recipe whose paths act in the class, and write what it needs."""
    (folder / "doors.py").write_text(CLASS)
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"go{n}", "answer": "ab"}) + "\n" for n in range(20))
    )
    data = recipe(
        tiny_model(folder / "model"),
        task={"name": "file", "path": str(rows), "reward": "number"},
        generate={
            "policy": "turns",
            "settings": {"starts": 2, "branches": 2, "depth": 1},
            "max_new_tokens": 24,
        },
        environment={"name": "doors:Door", "end": "?", "turns": 3},
        filter=[{"name": "environment"}],
        budget={"steps": STEPS, "minutes": 5.0},
    )
    data["resources"]["engine_settings"] = {"chain": CHAIN, "latency_s": 0.005}
    return data


@pytest.mark.slow
async def test_a_run_in_a_class_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("BANYAN_PATH", str(tmp_path))
    async with system(tmp_path / "state") as made:
        await made.create(acting(tmp_path))
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "state" / "store.sqlite"
    assert audit(database, run.run_id, STEPS) == []
    with sqlite3.connect(database) as db:
        tools = db.execute(
            "select text, receipt from segments where kind = ?", (int(Kind.TOOL),)
        ).fetchall()
        values = {value for (value,) in db.execute("select value from scores")}
    seen = {}
    for text, receipt in tools:
        observation = tree_pb2.Receipt.FromString(receipt).observation
        seen[text] = (observation.reward, observation.done)
    assert seen["ab"] == (1.0, True) and seen["a"] == (1.0, False)
    assert seen["error: ValueError: no key x"] == (0.0, False)
    assert 2.0 in values, "rewards of the steps of a path are summed"


@pytest.mark.slow
def test_a_class_that_cannot_begin_is_named_before_the_run(tmp_path: Path) -> None:
    data = acting(tmp_path)
    (tmp_path / "doors.py").write_text(
        CLASS.replace("self.said = ", "self.said = row['missing'] or ")
    )
    tmp_path.chmod(0o755)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("banyan")), "train", "recipe.yaml", "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "environment doors:Door: reset raised KeyError: 'missing'" in done.stderr
