"""Turns of Qwen3's form through all five services; random weights call and end at will."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan.segment import Finish, Kind
from banyan.v1 import runstore_service_pb2 as rs
from tests.chassis.renderers import vocabularies
from tests.faults.audit import audit
from tests.faults.harness import system, tiny_model
from tests.system.tiny import torch_recipe

STEPS = 2


def acting(folder: Path, tokenizer: Any) -> dict[str, Any]:
    """Return a run whose model calls, and writes an end of turn that does not end it."""
    data = torch_recipe(folder)
    tiny_model(folder / "model", vocab=len(tokenizer))
    tokenizer.save_pretrained(folder / "model")
    return data | {
        "task": data["task"] | {"path": str(folder / "rows.jsonl"), "reward": "number"},
        "filter": [{"name": "length", "settings": {"most": 20, "buffer": 60}}],
        "generate": {
            "policy": "iid",
            "settings": {"width": 4},
            "max_new_tokens": 48,
            "logit_bias": {tokenizer.convert_tokens_to_ids("<|endoftext|>"): 5.0},
        },
        "allow_truncated_sampling": True,
        "environment": {
            "name": "calculator",
            "settings": {"begin": "q", "end": "e"},
            "turns": 2,
            "renderer": "qwen3",
        },
        "budget": {"steps": STEPS, "minutes": 5.0},
    }


@pytest.mark.slow
async def test_paths_act_in_turns_of_qwen3(tmp_path: Path) -> None:
    tokenizer = vocabularies.qwen3_small()
    async with system(tmp_path / "state") as made:
        await made.create(acting(tmp_path / "run", tokenizer))
        run = await made.finish()
    database = tmp_path / "state" / "store.sqlite"
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(database, run.run_id, STEPS) == []
    with sqlite3.connect(database) as db:
        db.row_factory = sqlite3.Row
        tools = db.execute("select * from segments where kind = ?", (Kind.TOOL,)).fetchall()
        ended = db.execute("select * from leaves where reason = 'RENDERER'").fetchall()
        finishes = db.execute(
            "select s.finish, count(v.value) from leaves l join segments s on s.id = l.segment"
            " join scores v on v.segment = l.segment and v.end = l.end"
            " where l.reason = 'RENDERER' group by l.segment, l.end"
        ).fetchall()
    assert tools and ended
    for tool in tools:
        said = tokenizer.decode(np.frombuffer(tool["tokens"], np.int32).tolist())
        assert said.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\n")
        assert said.endswith("\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
        assert said.count("<|im_start|>") == 2
    assert len(finishes) == len(ended), "each is scored"
    assert {tuple(row) for row in finishes} == {(Finish.LENGTH, 1)}
