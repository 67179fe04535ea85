"""Engines under test: started once, reset for each test."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.rollout.engines.thread import Closing
from tests.engines.rig import RIGS, Rig, model_folder

HAS_VLLM = find_spec("vllm") is not None
VLLM = pytest.param(
    "vllm", marks=[pytest.mark.vllm, pytest.mark.skipif(not HAS_VLLM, reason="make vllm")]
)
LORA = pytest.param("lora", marks=VLLM.marks)
TORCH, SCRIPTED = pytest.param("torch"), pytest.param("scripted")


@pytest.fixture(scope="session")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Rig]]:
    made: dict[str, Rig] = {}
    yield made
    for one in made.values():
        if isinstance(one.engine, Closing):
            one.engine.close()


def taken(name: str, rigs: dict[str, Rig], factory: pytest.TempPathFactory) -> Rig:
    if name not in rigs:
        rigs[name] = RIGS[name](model_folder(factory.mktemp(name)))
    rigs[name].reset()
    return rigs[name]


@pytest.fixture(params=[TORCH, VLLM])
def rig(
    request: pytest.FixtureRequest, rigs: dict[str, Rig], tmp_path_factory: pytest.TempPathFactory
) -> Rig:
    """Return each engine with a model."""
    return taken(request.param, rigs, tmp_path_factory)


@pytest.fixture(params=[TORCH, VLLM, SCRIPTED])
def any_rig(
    request: pytest.FixtureRequest, rigs: dict[str, Rig], tmp_path_factory: pytest.TempPathFactory
) -> Rig:
    """Return each engine."""
    return taken(request.param, rigs, tmp_path_factory)


@pytest.fixture(params=[VLLM])
def vllm(
    request: pytest.FixtureRequest, rigs: dict[str, Rig], tmp_path_factory: pytest.TempPathFactory
) -> Rig:
    """Return the vllm engine."""
    return taken(request.param, rigs, tmp_path_factory)


@pytest.fixture(params=[LORA])
def lora(
    request: pytest.FixtureRequest, rigs: dict[str, Rig], tmp_path_factory: pytest.TempPathFactory
) -> Rig:
    """Return the vllm engine, started for adapters."""
    return taken(request.param, rigs, tmp_path_factory)


@pytest.fixture
def model_at(tmp_path: Path) -> Path:
    """Return a folder with the first policy's model."""
    return model_folder(tmp_path / "model")
