"""Weights with NaN or infinities are refused by name as a model is loaded, on learner and node."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from banyan.errors import InvalidInput
from services.chassis.weights import finite
from services.learner.model import load as learner_model
from services.rollout.engines.torch_engine import loading
from tests.faults.harness import tiny_model

LOADERS: list[Callable[[Path], object]] = [
    learner_model.load,
    lambda folder: loading.load_model(folder, torch.bfloat16, torch.device("cpu")),
]
NAME = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.torch import load_file, save_file

    folder = tiny_model(tmp_path_factory.mktemp("broken"))
    tensors = load_file(folder / "model.safetensors")
    tensors[NAME][3, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("load", LOADERS)
def test_a_model_that_is_not_finite_is_refused_as_it_is_loaded(
    load: Callable[[Path], object], broken: Path
) -> None:
    with pytest.raises(
        InvalidInput,
        match=rf"tensor {NAME} of .*{broken.name} holds 1 of 2,048 numbers that are not finite",
    ):
        load(broken)


@pytest.mark.parametrize("load", LOADERS)
def test_a_model_that_is_finite_is_loaded(load: Callable[[Path], object], tmp_path: Path) -> None:
    assert load(tiny_model(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_numbers_are_finite_and_infinities_are_not(dtype: torch.dtype) -> None:
    tensor = torch.full((3, 4), torch.finfo(dtype).max, dtype=dtype)
    finite.refuse([("w", tensor), ("ids", torch.arange(3)), ("none", torch.empty(0))], Path("m"))
    tensor[2, 3] = -torch.inf
    with pytest.raises(InvalidInput, match="tensor w of m holds 1 of 12"):
        finite.refuse([("w", tensor)], Path("m"))
