"""Paths whose answers outgrow a model of 96 positions: leaves with scores, and no tree is lost."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from banyan.segment import Finish, Kind
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from tests.faults.audit import audit
from tests.faults.harness import system
from tests.system.tiny import torch_recipe

STEPS, POSITIONS = 2, 96


def acting(folder: Path) -> dict[str, Any]:
    """Return a run of a short model that calls again and again, nearly always wrongly."""
    data = torch_recipe(folder)
    config = folder / "model" / "config.json"
    short = json.loads(config.read_text()) | {"max_position_embeddings": POSITIONS}
    config.write_text(json.dumps(short))
    end = AutoTokenizer.from_pretrained(folder / "model").convert_tokens_to_ids("e")
    return data | {
        "task": data["task"] | {"path": str(folder / "rows.jsonl"), "reward": "number"},
        "filter": [{"name": "length", "settings": {"most": 20, "buffer": 60}}],
        "generate": {
            "policy": "iid",
            "settings": {"width": 4},
            "max_new_tokens": 90,
            "logit_bias": {end: 4.0},
        },
        "allow_truncated_sampling": True,
        "environment": {
            "name": "calculator",
            "settings": {"begin": "q", "end": "e"},
            "turns": 20,
            "renderer": "chatml",
        },
        "budget": {"steps": STEPS, "minutes": 5.0},
    }


@pytest.mark.slow
async def test_a_context_that_answers_outgrow_ends_its_path_alone(tmp_path: Path) -> None:
    async with system(tmp_path / "state") as made:
        await made.create(acting(tmp_path / "run"))
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "state" / "store.sqlite"
    assert audit(database, run.run_id, STEPS) == []
    with sqlite3.connect(database) as db:
        dropped = db.execute(
            "select count(*) from trees where state = ?", (tree_pb2.TREE_STATE_DROPPED,)
        ).fetchone()[0]
        ends = db.execute(
            "select s.kind, s.finish, l.reason, count(v.value) from leaves l join segments s"
            " on s.id = l.segment join scores v on v.segment = l.segment and v.end = l.end"
            " where v.state = ? group by l.segment, l.end",
            (tree_pb2.SCORE_STATE_SCORED,),
        ).fetchall()
    assert dropped == 0
    behind_answers = [end for end in ends if end[0] == Kind.TOOL]
    assert behind_answers, "answers filled the model"
    assert set(behind_answers) == {(Kind.TOOL, Finish.LENGTH, "length", 1)}
