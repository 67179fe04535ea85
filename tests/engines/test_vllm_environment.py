"""Paths that act on vLLM: stopped by the end of an action, and continued behind the answer."""

import sqlite3
from pathlib import Path

import pytest
import yaml

from banyan.segment import Finish, Kind
from tests.engines.conftest import HAS_VLLM
from tests.engines.rig import model_folder
from tests.faults.audit import audit
from tests.faults.harness import recipe
from tests.system.joining import command

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not HAS_VLLM, reason="make vllm")]
STEPS = 2
END = "e"  # of an action: a random model says each of 72 characters now and then


async def test_an_answer_is_a_part_of_the_path_that_vllm_continues(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "say {n}", "answer": "1"}}\n' for n in range(40))
    )
    data = recipe(
        model_folder(tmp_path / "model"),
        task={
            "name": "file",
            "path": str(tmp_path / "rows.jsonl"),
            "reward": "number",
            "holdout": 0.0,
        },
        filter=[{"name": "length", "settings": {"most": 20, "buffer": 60}}],
        generate={"policy": "iid", "settings": {"width": 4}, "max_new_tokens": 60},
        environment={
            "name": "calculator",
            "settings": {"begin": "q", "end": END},
            "turns": 3,
            "renderer": "chatml",
        },
        budget={"steps": STEPS, "minutes": 5.0},
        resources={
            "engine": "vllm",
            "engine_settings": {},
            "threads": 1,
            "kv_tokens": 8192,
            "max_branches": 16,
            "dtype": "float32",
        },
    )
    file, state = tmp_path / "recipe.yaml", tmp_path / "state"
    file.write_text(yaml.safe_dump(data))
    async with command(tmp_path / "out", "train", str(file), "--state", str(state)) as run:
        assert await run.ends(240.0) == 0, run.output
    database = state / "store.sqlite"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        ((run_id,),) = db.execute("select run_id from runs").fetchall()
        behind = db.execute(
            "select action.finish, length(action.text), count(more.id) from segments answer"
            " join segments action on action.id = answer.parent"
            " left join segments more on more.parent = answer.id"
            " where answer.kind = ? group by answer.id",
            (int(Kind.TOOL),),
        ).fetchall()
    assert len(behind) >= STEPS, "the random model called a tool"
    assert {finish for finish, _, _ in behind} == {int(Finish.TOOL_CALL)}
    assert any(more for _, _, more in behind), "the policy goes on behind an answer"
    assert audit(database, run_id, STEPS) == []
