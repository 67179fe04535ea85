"""The learner's device by the recipe, and equal steps on an accelerator that mixes no tensors."""

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
from tests.learner.accelerator_cases import CASES

ROOT = Path(__file__).parents[3]


def test_a_recipe_says_where_the_learner_computes(monkeypatch: Any) -> None:
    assert device.choose("auto") == device.choose("cpu") == torch.device("cpu")
    with pytest.raises(
        InvalidInput, match=r"PyTorch sees 0 accelerators here, .* set it to auto or cpu"
    ):
        device.choose("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for values in ("auto", "cuda"):
        assert [device.choose(values, False, rank, 4) for rank in (0, 3)] == [
            torch.device("cuda", rank) for rank in (0, 3)
        ]
    assert device.choose("auto", False, 1, 5) == torch.device("cpu"), (
        "of all ranks alike, where there are too few"
    )
    with pytest.raises(
        InvalidInput, match=r"sees 4 accelerators here, and each rank of 5 needs one"
    ):
        device.choose("cuda", False, 1, 5)
    assert (
        device.choose("auto", deterministic=True)
        == device.choose("cpu", rank=3)
        == torch.device("cpu")
    )


def test_an_accelerator_multiplies_bfloat16() -> None:
    assert device.compute_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert device.compute_dtype("float32", torch.device("cuda")) is torch.float32
    assert device.compute_dtype("auto", torch.device("cpu")) is device.compute_dtype("auto")


def test_deterministic_runs_train_on_the_cpu() -> None:
    values = {
        "name": "x",
        "model": "m",
        "task": {"name": "arithmetic"},
        "deterministic": True,
        "control": {"max_staleness": 0},
    }
    assert resolve(values).resources.learner_device == "auto"
    with pytest.raises(
        InvalidInput, match=r"deterministic: true trains on the CPU: set resources.learner_device"
    ):
        resolve(values | {"resources": {"learner_device": "cuda"}})


def test_torchrun_says_which_accelerator_of_the_machine_is_a_ranks_own() -> None:
    values = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert read_rank(values) == RankPlace(5, 8) and read_rank(values | local) == RankPlace(
        5, 8, (1, 4)
    )
    with pytest.raises(InvalidInput, match="must be numbers"):
        read_rank(values | local | {"LOCAL_RANK": "one"})


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.learner.accelerator_cases"]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_tensors_of_host_and_accelerator_are_not_mixed_unnoticed(steps: dict[str, Any]) -> None:
    assert steps["refused"].startswith("aten::add of tensors of the host and of the accelerator")


def numbers(values: Any) -> list[float]:
    if isinstance(values, dict):
        return [n for key in sorted(values) for n in numbers(values[key])]
    return (
        [n for item in values for n in numbers(item)]
        if isinstance(values, list)
        else [float(values)]
    )


@pytest.mark.parametrize("case", CASES)
def test_steps_on_an_accelerator_are_those_of_the_host(steps: dict[str, Any], case: str) -> None:
    """Over a checkpoint too, and as published; the other attention method rounds otherwise."""
    here, there = steps["here"][case], steps["there"][case]
    assert all(report["applied"] for report in here["reports"])
    if case == "head":
        assert all(report["head"]["head_observations"] for report in here["reports"]), "it learns"
    exact = case != "bfloat16"
    for part in ("reports", "canary", *(("weights",) if exact else ())):
        np.testing.assert_allclose(
            numbers(there[part]), numbers(here[part]), rtol=2e-5 if exact else 2e-2, atol=1e-5
        )
