"""Where a learner computes: what the recipe says, and the same steps on an accelerator, without mixing its tensors with the
host's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.recipe_loader.load import resolve
from services.learner.model import device
from services.learner.training.distributed.rank_env import RankPlace, read_rank
from tests.learner.accelerated import CASES

ROOT = Path(__file__).parents[3]


def test_a_recipe_says_where_the_learner_computes(monkeypatch: Any) -> None:
    assert device.choose("auto") == device.choose("cpu") == torch.device("cpu")
    with pytest.raises(InvalidInput, match=r"PyTorch sees 0 accelerators here, .* set it to auto or cpu"):
        device.choose("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for said in ("auto", "cuda"):
        assert [device.choose(said, False, rank, 4) for rank in (0, 3)] == [torch.device("cuda", rank) for rank in (0, 3)]
    assert device.choose("auto", False, 1, 5) == torch.device("cpu"), "of all ranks alike, where there are too few"
    with pytest.raises(InvalidInput, match=r"sees 4 accelerators here, and each rank of 5 needs one"):
        device.choose("cuda", False, 1, 5)
    assert device.choose("auto", deterministic=True) == device.choose("cpu", rank=3) == torch.device("cpu")


def test_an_accelerator_multiplies_bfloat16() -> None:
    assert device.compute_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert device.compute_dtype("float32", torch.device("cuda")) is torch.float32
    assert device.compute_dtype("auto", torch.device("cpu")) is device.compute_dtype("auto")


def test_deterministic_runs_train_on_the_cpu() -> None:
    said = {
        "name": "x",
        "model": "m",
        "task": {"name": "arithmetic"},
        "deterministic": True,
        "control": {"max_staleness": 0},
    }
    assert resolve(said).resources.learner_device == "auto"
    with pytest.raises(InvalidInput, match=r"deterministic: true trains on the CPU: set resources.learner_device"):
        resolve(said | {"resources": {"learner_device": "cuda"}})


def test_torchrun_says_which_accelerator_of_the_machine_is_a_ranks_own() -> None:
    said = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert read_rank(said) == RankPlace(5, 8) and read_rank(said | local) == RankPlace(5, 8, (1, 4))
    with pytest.raises(InvalidInput, match="must be numbers"):
        read_rank(said | local | {"LOCAL_RANK": "one"})


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.learner.accelerated"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def test_tensors_of_host_and_accelerator_are_not_mixed_unnoticed(steps: dict[str, Any]) -> None:
    assert steps["refused"].startswith("aten::add of tensors of the host and of the accelerator")


def numbers(said: Any) -> list[float]:
    if isinstance(said, dict):
        return [n for key in sorted(said) for n in numbers(said[key])]
    return [n for item in said for n in numbers(item)] if isinstance(said, list) else [float(said)]


@pytest.mark.parametrize("case", CASES)
def test_steps_on_an_accelerator_are_those_of_the_host(steps: dict[str, Any], case: str) -> None:
    """Also over a checkpoint, and what goes out; rounding differs, as another way of attention is taken there."""
    here, there = steps["here"][case], steps["there"][case]
    assert all(report["applied"] for report in here["reports"])
    if case == "head":
        assert all(report["head"]["head_observations"] for report in here["reports"]), "it learns"
    exact = case != "bfloat16"
    for part in ("reports", "canary", *(("weights",) if exact else ())):
        np.testing.assert_allclose(numbers(there[part]), numbers(here[part]), rtol=2e-5 if exact else 2e-2, atol=1e-5)
