"""`banyan train` as a person uses it: one seed twice, Ctrl-C and --resume, a failing reward."""

import asyncio
import json
import random
import signal
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import STEPS, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED
from tests.system.joining import command
from tests.system.tiny import torch_recipe

pytestmark = pytest.mark.slow

STEP_S = 0.5  # of the tiny model, sampling included
Facts = tuple[list[bytes], list[tuple[int, bytes]]]


def facts(state: Path) -> Facts:
    """Return all segment ids, and the digest of each step's policy in force."""
    database = sqlite3.connect(f"file:{state / 'store.sqlite'}?mode=ro", uri=True)
    segments = [row[0] for row in database.execute("select id from segments order by id")]
    policies = database.execute(
        "select distinct step, digest from policies order by step"
    ).fetchall()
    database.close()
    return segments, policies


async def deterministic_run(
    folder: Path, state: Path, steps: int = 4, kills: Sequence[tuple[int, float]] = ()
) -> Facts:
    """Make a run with real weights. kills: (step, seconds after it) of kills of the learner."""
    changes: dict[str, Any] = {"deterministic": True, "budget": {"steps": steps, "minutes": 5.0}}
    data = yaml.safe_load((folder / "recipe.yaml").read_text()) | changes
    async with system(state, {"PYTHONPATH": str(folder)}) as made:
        await made.create(data)
        for step, after_s in kills:
            await made.reach(step)
            await asyncio.sleep(after_s)
            await made.kill("learner")
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    return facts(state)


def with_rows(folder: Path) -> Path:
    """Return the folder of a recipe whose path of rows is absolute; it logs four completions of the
    first step and of every second one."""
    data = torch_recipe(folder)
    sampled = {"jsonl": {"completions": 4, "completions_every": 2}}
    data["logging"] = {"loggers": ["jsonl"], "settings": sampled}
    data["task"]["path"] = str(folder / "rows.jsonl")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(data))
    return folder


def completions(state: Path) -> list[dict[str, Any]]:
    """Return the samples of the only run's completions."""
    (path,) = state.glob("runs/*/loggers/jsonl/completions.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_one_seed_gives_the_same_ids_and_weights_also_when_the_learner_dies(
    tmp_path: Path,
) -> None:
    folder = with_rows(tmp_path / "recipe")
    first = await deterministic_run(folder, tmp_path / "first")
    second = await deterministic_run(folder, tmp_path / "second")
    assert first == second and len(first[1]) == 5 and len({digest for _, digest in first[1]}) > 1
    killed = await deterministic_run(folder, tmp_path / "killed", kills=[(2, 0.0)])
    assert killed == first
    samples = completions(tmp_path / "first")
    assert [row["step"] for row in samples] == [step for step in (1, 2, 4) for _ in range(4)]
    assert sum(bool(row["completion"]) for row in samples) > 6, "an answer may be its end alone"
    for row in samples:
        assert row["prompt"].startswith("say ")
        assert row["reward"] == sum(map(ord, row["completion"])) % 7 / 6
    assert completions(tmp_path / "killed") == samples


async def test_a_learner_that_dies_at_any_moments_makes_the_same_weights(tmp_path: Path) -> None:
    """Three times in one run, at moments drawn evenly over the duration of a step."""
    folder, steps = with_rows(tmp_path / "recipe"), 5
    first = await deterministic_run(folder, tmp_path / "first", steps)
    rng = random.Random(17)
    kills = [(step, rng.uniform(0.0, STEP_S)) for step in range(1, 4)]
    print([f"{after_s:.2f} s after step {step}" for step, after_s in kills])
    assert await deterministic_run(folder, tmp_path / "killed", steps, kills) == first
    assert len(first[1]) == steps + 1 and len({digest for _, digest in first[1]}) == steps + 1


def write(folder: Path, data: dict[str, Any]) -> str:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


async def test_ctrl_c_pauses_and_resume_finishes(tmp_path: Path) -> None:
    file, state = write(tmp_path, recipe(tiny_model(tmp_path / "model"))), tmp_path / "state"
    async with command(tmp_path / "first.out", "train", file, "--state", str(state)) as first:
        await first.says(r"step +2/")
        first.stop(signal.SIGINT)
        assert await first.ends() == 130
        assert "--resume" in first.output and "Traceback" not in first.output
    async with command(
        tmp_path / "second.out", "train", "--resume", "--state", str(state)
    ) as second:
        assert await second.ends(180.0) == 0, second.output
    run_id = only_run(state)
    assert audit(state / "store.sqlite", run_id, STEPS, KILLED) == []


def only_run(state: Path) -> str:
    database = sqlite3.connect(f"file:{state / 'store.sqlite'}?mode=ro", uri=True)
    (run_id,) = database.execute("select run_id from runs").fetchone()
    database.close()
    return str(run_id)


@pytest.mark.parametrize(
    ("body", "words"),
    [("raise KeyError('gold')", "EXCEPTION"), ("return float('nan')", "NOT_A_NUMBER")],
)
async def test_a_reward_function_that_fails_ends_the_run_with_its_reason(
    tmp_path: Path, body: str, words: str
) -> None:
    # It is tried on these texts before a run begins.
    tried = "    if completion in ('The answer is 42.', 'I do not know.'):\n        return 0.0\n"
    (tmp_path / "bad_reward.py").write_text(f"def reward(completion, **row):\n{tried}    {body}\n")
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "{n} + {n}"}}\n' for n in range(10, 30))
    )
    task = {"name": "file", "path": "rows.jsonl", "reward": "bad_reward:reward", "holdout": 0.3}
    file = write(tmp_path, recipe(tiny_model(tmp_path / "model"), task=task))
    async with command(tmp_path / "out", "train", file, "--state", str(tmp_path / "state")) as run:
        assert await run.ends(120.0) == 1
        assert "FAILED" in run.output and words in run.output and "Traceback" not in run.output, (
            run.output
        )
