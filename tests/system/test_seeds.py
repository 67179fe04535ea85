"""Unsolved problems come back with solved ones as examples, while trees grow by budgets."""

import json
import sqlite3
from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from tests.faults.audit import audit
from tests.faults.harness import system
from tests.system.tiny import torch_recipe

pytestmark = pytest.mark.slow

STEPS = 6
REWARD = """
import zlib

def reward(completion, prompt, **row):
    right = int(prompt.split()[-1]) % 2 == 0
    # Answers to one problem differ, so that a step learns.
    return float(right) * (1.0 + zlib.crc32(completion.encode()) / 2**32)
"""


async def test_rows_that_failed_are_grown_and_trained_with_examples(tmp_path: Path) -> None:
    folder = tmp_path / "recipe"
    data = torch_recipe(folder)
    (folder / "rows.jsonl").write_text("".join(f'{{"prompt": "say {n}"}}\n' for n in range(4)))
    (folder / "any_reward.py").write_text(REWARD)
    data["task"] |= {"path": str(folder / "rows.jsonl")}
    rooms = {"rooms": "xrpo", "rooms_settings": {"rollouts": 4, "phases": 2}}
    data |= {
        "generate": {"policy": "rounds", "settings": {"start": 2, "most": 8}, "max_new_tokens": 4},
        "control": {
            "groups_per_batch": 2,
            "curriculum": "seeds",
            "curriculum_settings": {"chars": 60},
            **rooms,
        },
        "budget": {"steps": STEPS, "minutes": 4.0},
        "eval": {"samples": 0},
    }
    async with system(tmp_path / "state", {"PYTHONPATH": str(folder)}) as made:
        await made.create(data)
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(tmp_path / "state" / "store.sqlite", run.run_id, STEPS) == []
    seeded, plain = _openings(tmp_path / "state" / "store.sqlite")
    assert seeded and all(row % 2 for row in seeded), "rows that failed, and no others"
    assert set(plain[:4]) == {0, 1, 2, 3} and all(row % 2 == 0 for row in plain[4:])


def _openings(database: Path) -> tuple[list[int], list[int]]:
    """Return rows opened with examples and without, in order; each root holds its prompt."""
    query = (
        "select t.spec, s.text from trees t join segments s on s.tree_id = t.tree_id and"
        " s.parent = x'' order by t.n"
    )
    seeded, plain = [], []
    for data, root in sqlite3.connect(database).execute(query):
        spec = tree_pb2.TreeSpec.FromString(data)
        messages, row = (
            json.loads(spec.messages_json),
            int(json.loads(spec.row_json)["prompt"].split()[-1]),
        )
        assert messages[-1]["content"] == f"say {row}" and all(
            m["content"] in root for m in messages
        )
        examples = [m for m in messages if m["role"] == "assistant"]
        assert len(examples) in (0, 1, 2) and len(messages) == 2 * len(examples) + 1
        (seeded if examples else plain).append(row)
    return seeded, plain
