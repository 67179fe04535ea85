"""`banyan train` on the vllm engine: own thread and processes, a new policy at each step."""

import re
import sqlite3
from pathlib import Path

import pytest
import yaml

from tests.engines.conftest import HAS_VLLM
from tests.engines.rig import model_folder
from tests.faults.harness import recipe
from tests.system.joining import command

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not HAS_VLLM, reason="make vllm")]
STEPS = 3


@pytest.mark.parametrize("weights", ["file", "nccl"])
async def test_a_run_trains_on_what_vllm_sampled(tmp_path: Path, weights: str) -> None:
    resources = {
        "weights": weights,
        "engine": "vllm",
        "engine_settings": {},
        "threads": 1,
        "kv_tokens": 8192,
        "max_branches": 16,
        "dtype": "float32",
    }
    (tmp_path / "any_reward.py").write_text(
        "def reward(completion, **row):\n    return sum(map(ord, completion)) % 7 / 6\n"
    )
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "say {n}"}}\n' for n in range(40)))
    task = {"name": "file", "path": "rows.jsonl", "reward": "any_reward:reward", "holdout": 0.0}
    budget = {"steps": STEPS, "minutes": 5.0}
    data = recipe(model_folder(tmp_path / "model"), task=task, budget=budget, resources=resources)
    file, state = tmp_path / "recipe.yaml", tmp_path / "state"
    file.write_text(yaml.safe_dump(data))
    async with command(tmp_path / "out", "train", str(file), "--state", str(state)) as run:
        assert await run.ends(180.0) == 0, run.output
    database = sqlite3.connect(f"file:{state / 'store.sqlite'}?mode=ro", uri=True)
    steps = [
        row[0]
        for row in database.execute(
            "select distinct policy_step from segments where kind = 2 order by 1"
        )
    ]
    database.close()
    said = "\n".join(file.read_text() for file in state.rglob("learner*.log"))
    handed = re.findall(
        r"weights of step (\d+) handed over to node 'rollout-0', 1 workers, by gloo", said
    )
    assert handed[:STEPS] == ([str(step) for step in range(STEPS)] if weights == "nccl" else []), (
        said
    )
    assert not list((state / "weights").rglob("*.bin")), "no node has a file of its own"
    assert steps[:STEPS] == list(range(STEPS)), (
        f"segments of the policies {steps}, each of which was loaded in turn"
    )
