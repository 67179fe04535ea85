"""One seed, one run of paths that act: trees, batches and weights, whoever answers and dies."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from banyan.runtime.ports import free_port
from banyan.v1 import runstore_service_pb2 as rs
from services.supervisor.fleet import HOST, ProcessCommands
from tests.faults.audit import audit
from tests.faults.harness import System, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED, NOTHING
from tests.system.test_environment import CHAIN
from tests.system.tiny import byte_tokenizer

pytestmark = pytest.mark.slow

STEPS, SPARE = 2, "verifier-spare"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
# Answers come late, by chance, which is no part of them.
CLASS = """
import os, time

class Tally:
    deterministic = True

    def reset(self, row):
        self.total = 0

    def step(self, action):
        time.sleep(os.urandom(1)[0] / 5000)
        self.total += sum(map(ord, action))
        return str(self.total), float(self.total % 3), self.total % 7 == 0
"""
REWARD = "def reward(completion, **row):\n    return sum(map(ord, completion)) % 7 / 6\n"
QUERIES = (
    "select id from segments order by id",
    "select tree_id, segment, end, scorer, state, value from scores order by 1, 2, 3, 4",
    "select ordinal, group_ids from batches order by ordinal",
    "select distinct step, digest from policies order by step",
    "select count from counts where name = 'unrepeatable'",
)


def acting(folder: Path) -> dict[str, Any]:
    """Write what a run with real weights needs, and return its recipe."""
    folder.chmod(0o755)
    (folder / "tally.py").write_text(CLASS)
    (folder / "any_reward.py").write_text(REWARD)
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"go{n}", "answer": "a"}) + "\n" for n in range(20))
    )
    byte_tokenizer(tiny_model(folder / "model", vocab=257))
    return recipe(
        folder / "model",
        deterministic=True,
        allow_truncated_sampling=True,  # for the bias, without which few paths act
        task={"name": "file", "path": str(rows), "reward": "any_reward:reward"},
        generate={
            "policy": "turns",
            "settings": {"starts": 2, "branches": 2, "depth": 1},
            "max_new_tokens": 16,
            "logit_bias": {BYTES.index("?"): 4.0},
        },
        environment={"name": "tally:Tally", "end": "?", "turns": 3},
        control={"groups_per_batch": 3, "max_staleness": 0},
        budget={"steps": STEPS, "minutes": 5.0},
        eval={"samples": 1, "max_rows": 2},
        resources={
            "engine": "torch",
            "threads": 1,
            "kv_tokens": 8192,
            "max_branches": 8,
            "dtype": "float32",
        },
    )


def scripted(data: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe for the scripted engine, whose paths calculate."""
    generate = {key: value for key, value in data["generate"].items() if key != "logit_bias"}
    return data | {
        "generate": generate,
        "environment": {
            "name": "calculator",
            "settings": {"begin": "=", "end": "?"},
            "turns": 2,
        },
        "resources": {"engine": "scripted", "engine_settings": {"chain": CHAIN}},
    }


async def add_verifier(made: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start another verifier, to which nodes turn when they do not reach the first."""
    fleet = made.supervisor.fleet
    address = f"{HOST}:{free_port(taken=made.supervisor.used_ports())}"
    child = fleet._python(SPARE, "verifier", fleet._env(address), address)
    child.env["BANYAN_VERIFIER_ID"] = SPARE
    await made.supervisor.keep(child)
    worker = ProcessCommands.worker

    def with_both(self: ProcessCommands, *named: Any, **more: Any) -> Any:
        made_worker = worker(self, *named, **more)
        first = made_worker.env.get("BANYAN_VERIFIER")
        if first:
            made_worker.env["BANYAN_VERIFIER"] = f"ipv4:{first},{address}"
        return made_worker

    monkeypatch.setattr(ProcessCommands, "worker", with_both)


async def facts(
    state: Path,
    data: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    kills: Sequence[tuple[int, float, str]] = (),
) -> list[Any]:
    """Return what a run stored that its seed decides.

    kills: step, seconds after it, and the service to kill; with any, there is a second verifier.
    """
    async with system(state) as made:
        if kills:
            await add_verifier(made, monkeypatch)
        await made.create(data)
        for step, after_s, service in kills:
            await made.reach(step)
            await asyncio.sleep(after_s)
            await made.kill(service)
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = state / "store.sqlite"
    assert audit(database, run.run_id, STEPS, KILLED if kills else NOTHING) == []
    with sqlite3.connect(database) as db:
        (tools,) = db.execute("select count(*) from segments where kind = 3").fetchone()
        assert tools >= 2 * STEPS
        return [db.execute(query).fetchall() for query in QUERIES]


KILLS = {
    "torch": [(0, 0.1, "verifier"), (1, 0.3, "verifier")],
    "scripted": [(0, 0.1, "verifier"), (0, 0.2, "rollout"), (1, 0.1, "verifier")],
}


@pytest.mark.parametrize("engine", KILLS)
async def test_one_seed_makes_one_run_whoever_answers_and_whoever_dies(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANYAN_PATH", str(tmp_path))
    data = acting(tmp_path)
    if engine == "scripted":
        data = scripted(data)
    first = await facts(tmp_path / "first", data, monkeypatch)
    killed = await facts(tmp_path / "killed", data, monkeypatch, KILLS[engine])
    for query, one, other in zip(QUERIES, first, killed, strict=True):
        assert one == other, query
    assert len({digest for _, digest in first[3]}) > 1 and first[4] == []
