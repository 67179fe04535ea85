"""`banyan train` on the vllm engine: its own thread, its own processes, a new policy at each step."""

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


async def test_a_run_trains_on_what_vllm_sampled(tmp_path: Path) -> None:
    resources = {
        "engine": "vllm",
        "engine_settings": {},
        "threads": 1,
        "kv_tokens": 8192,
        "max_branches": 16,
        "dtype": "float32",
    }
    data = recipe(model_folder(tmp_path / "model"), budget={"steps": STEPS, "minutes": 5.0}, resources=resources)
    file, state = tmp_path / "recipe.yaml", tmp_path / "state"
    file.write_text(yaml.safe_dump(data))
    async with command(tmp_path / "out", "train", str(file), "--state", str(state)) as run:
        assert await run.ends(180.0) == 0, run.output
    database = sqlite3.connect(f"file:{state / 'store.sqlite'}?mode=ro", uri=True)
    steps = [row[0] for row in database.execute("select distinct policy_step from segments where kind = 2 order by 1")]
    database.close()
    assert steps[:STEPS] == list(range(STEPS)), f"segments of the policies {steps}, each of which was loaded in turn"
