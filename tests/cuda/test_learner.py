"""The learner on a CUDA device: losses of packed trees, its check of a model, whole steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from services.learner import losses
from services.learner.model import attention_check
from services.learner.model.load import prepare
from tests.learner.accelerator_cases import CASES, trained
from tests.learner.flat_reference import flat_loss, packed
from tests.learner.mixed_batches import batch, sequences_of
from tests.learner.model.test_device import numbers

WIDE = {"head_dim": 64}
BOUNDS = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (0.05, 0.1)}


def apart(flat: Any, packed_there: Any) -> float:
    """Return the norm of the difference of all gradients over the norm of the exact ones."""
    square = sum(
        float((flat[name] - g.double().cpu()).square().sum()) for name, g in packed_there.items()
    )
    return float((square / sum(float(g.square().sum()) for g in flat.values())) ** 0.5)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", ["ppo-clip", "gspo"])
def test_packed_losses_and_gradients_are_those_of_flat_paths_on_the_host(
    cuda: torch.device, tiny_llama: Callable[..., Any], name: str, dtype: torch.dtype
) -> None:
    views, leaf_G_L = batch(3, trees=3, segments=12)
    expected, flat = flat_loss(tiny_llama(**WIDE), views, leaf_G_L, name, {})
    model = tiny_llama(dtype=torch.float32, **WIDE).to(cuda)
    sequences = sequences_of(views, leaf_G_L, losses.build(name, {}), 400)
    got, gradients = packed(model, sequences, name, {}, dtype=dtype)
    loss_bound, gradient_bound = BOUNDS[dtype]
    assert got == pytest.approx(expected, rel=loss_bound, abs=loss_bound)
    assert apart(flat, gradients) < gradient_bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_check_of_a_loaded_model_passes(
    cuda: torch.device, tiny_llama: Callable[..., Any], dtype: torch.dtype
) -> None:
    attention_check.check(prepare(tiny_llama(dtype=dtype, **WIDE)).to(cuda))


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_host(cuda: torch.device, case: str) -> None:
    """Over a checkpoint too, and as published."""
    there, here = trained(case, "cuda"), trained(case, "cpu")
    exact = case != "bfloat16"
    for part in ("reports", "canary", *(("weights",) if exact else ())):
        np.testing.assert_allclose(
            numbers(there[part]), numbers(here[part]), rtol=1e-3 if exact else 5e-2, atol=1e-4
        )
