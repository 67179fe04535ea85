"""Paths that call a calculator, through all five services: answered, stored, scored, trained on."""

import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from banyan.segment import Finish, Kind
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from tests.faults.audit import audit
from tests.faults.harness import recipe, system, tiny_model
from tests.faults.oracle.allowed import Allowed

STEPS, TURNS = 3, 2
# A sum or product between = and ?, an answer, then a (right) or b (wrong), or another call.
CHAIN = {
    "": {"=": 1.0},
    "=": {"6": 0.5, "1": 0.5},
    "=6": {"*": 1.0},
    "=6*": {"7": 1.0},
    "=6*7": {"?": 1.0},
    "=1": {"*": 1.0},
    "=1*": {"1": 1.0},
    "=1*1": {"?": 1.0},
    "42 ": {"a": 0.6, "b": 0.2, "=": 0.2},
    " 1 ": {"a": 0.2, "b": 0.6, "=": 0.2},
    "a": {"": 1.0},
    "b": {"": 1.0},
}


def acting(folder: Path) -> dict[str, Any]:
    """Return a recipe whose paths act."""
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"go{n}", "answer": "a"}) + "\n" for n in range(20))
    )
    data = recipe(
        tiny_model(folder / "model"),
        task={"name": "file", "path": str(rows), "reward": "number"},
        generate={
            "policy": "turns",
            "settings": {"starts": 2, "branches": 2, "depth": 1},
            "max_new_tokens": 24,
        },
        environment={
            "name": "calculator",
            "settings": {"begin": "=", "end": "?"},
            "turns": TURNS,
        },
        filter=[
            {"name": "regex", "settings": {"pattern": "^(a)$", "equals": "answer"}},
            {"name": "tool-calls", "settings": {"required": ["calculator"]}},
        ],
        budget={"steps": STEPS, "minutes": 5.0},
    )
    data["resources"]["engine_settings"] = {"chain": CHAIN, "latency_s": 0.005}
    return data


def segments(database: Path) -> dict[bytes, sqlite3.Row]:
    with sqlite3.connect(database) as db:
        db.row_factory = sqlite3.Row
        return {row["id"]: row for row in db.execute("select * from segments")}


def check(database: Path, run: rs.Run) -> int:
    """Check the stored paths of a run; return the number of answers."""
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(database, run.run_id, STEPS) == []
    rows = segments(database)
    tools = [row for row in rows.values() if row["kind"] == Kind.TOOL]
    assert {row["text"] for row in tools} == {"42", "1"}
    for row in tools:
        action = rows[row["parent"]]
        receipt = tree_pb2.Receipt.FromString(row["receipt"])
        assert action["finish"] == Finish.TOOL_CALL and row["fork"] == action["length"]
        assert receipt.observation.action == row["parent"] and len(receipt.mac) == 32
        assert receipt.call.endswith(("=6*7?", "=1*1?"))
        assert not row["logprobs"] and not row["policy_digest"]
    forks = Counter(row["parent"] for row in rows.values())
    assert max(forks[row["id"]] for row in tools) == 2, "paths fork behind answers"
    answered = {row["parent"] for row in tools}
    calls = [row for row in rows.values() if row["finish"] == Finish.TOOL_CALL]
    assert {row["id"] for row in calls} == answered, "every action has its answer"
    return len(tools)


DAMAGES = {
    "update segments set receipt = null where kind = 3": "has a receipt for something else",
    "update segments set text = '43' where kind = 3": "has a receipt for something else",
    "update segments set finish = 2 where finish = 4": "stands behind no action",
    "delete from segments where kind = 3": "has no answer",
}


@pytest.mark.slow
async def test_a_run_whose_paths_act(tmp_path: Path) -> None:
    async with system(tmp_path / "state") as made:
        await made.create(acting(tmp_path))
        run = await made.finish()
    database = tmp_path / "state" / "store.sqlite"
    answers = check(database, run)
    assert answers >= STEPS * 4 * 2, "each path from the prompt calls at least once"
    with sqlite3.connect(database) as db:
        values = {
            completion: {value for (value,) in found}
            for completion in ("a", "b")
            if (
                found := db.execute(
                    "select s.value from scores s join leaves l on l.tree_id = s.tree_id and"
                    " l.segment = s.segment and l.end = s.end where l.completion = ?"
                    " and s.scorer = 'regex'",
                    (completion,),
                ).fetchall()
            )
        }
        of_calls = db.execute(
            "select distinct l.completion in ('a', 'b'), s.value from scores s join leaves l on"
            " l.segment = s.segment and l.end = s.end where s.scorer = 'tool-calls'"
        ).fetchall()
    assert values == {"a": {1.0}, "b": {0.0}}, "scored is what stands behind the last answer"
    assert set(of_calls) >= {(1, 1.0)} and (1, 0.0) not in of_calls, "calls are those of the store"
    for number, (damage, seen) in enumerate(DAMAGES.items()):
        copy = tmp_path / f"copy{number}.sqlite"
        shutil.copy(database, copy)
        with sqlite3.connect(copy) as db:
            db.execute(damage)
        assert any(seen in fault for fault in audit(copy, run.run_id, STEPS)), damage


@pytest.mark.slow
async def test_actions_without_an_answer_cost_their_paths_alone(tmp_path: Path) -> None:
    data = acting(tmp_path)
    data["environment"]["episode_s"] = 0.001
    # Ten rows: an evaluation whose every path calls, and so has no score at all, ends the run.
    data["task"]["holdout"] = 0.5
    data["eval"]["max_rows"] = 10
    # Eight first actions a tree: a run whose every tree answers alike would change no weights.
    data["generate"]["settings"] = {"starts": 8, "branches": 2, "depth": 1}
    begin = {"": {"=": 0.3, "a": 0.4, "b": 0.3}}
    data["resources"]["engine_settings"]["chain"] = {**CHAIN, **begin}
    async with system(tmp_path / "state") as made:
        await made.create(data)
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "state" / "store.sqlite"
    assert audit(database, run.run_id, STEPS, Allowed(unscorable=("DEADLINE",))) == []
    rows = segments(database)
    assert not [row for row in rows.values() if row["kind"] == Kind.TOOL]
    with sqlite3.connect(database) as db:
        scores = db.execute("select segment, state, reason from scores").fetchall()
        trees = {state for (state,) in db.execute("select state from trees")}
    late = {segment for segment, _, reason in scores if reason.startswith("DEADLINE: ")}
    calls = {row["id"] for row in rows.values() if row["finish"] == Finish.TOOL_CALL}
    assert late == calls and calls
    assert {s for s, state, _ in scores if state == tree_pb2.SCORE_STATE_SCORED} - calls
    assert tree_pb2.TREE_STATE_DROPPED not in trees, "no tree is given up"


@pytest.mark.faults
async def test_killed_processes_change_no_answer(tmp_path: Path) -> None:
    async with system(tmp_path / "state") as made:
        await made.create(acting(tmp_path))
        for step, service in ((0, "verifier"), (1, "rollout"), (1, "verifier"), (2, "treestore")):
            await made.reach(step)
            await made.kill(service)
        run = await made.finish()
    check(tmp_path / "state" / "store.sqlite", run)
