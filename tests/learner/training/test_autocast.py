"""bfloat16 with float32 masters against torch.autocast: equal gradients within rounding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from banyan.recipe import Optimise
from services.learner.losses.aggregate import totals_of
from services.learner.model.load import forward, prepare
from services.learner.training import gather
from services.learner.training.trainer import Trainer, settle
from tests.learner.random_sequences import sequences_of

# Of a gradient's norm: bfloat16 has 8 bits, and a model of two layers some 30 consecutive products.
EXACT = 0.1
APART = 0.1


def norm_of(difference: torch.Tensor, of: torch.Tensor) -> float:
    return float(difference.norm() / of.norm())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_are_those_of_autocast_within_rounding(
    tiny_llama: Callable[..., Any], forest: Any, seed: int
) -> None:
    settle(1)
    gradients = {}
    for kind in ("float32", "bfloat16", "autocast"):
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        trainer = Trainer(
            prepare(tiny_llama(seed, torch.float32)), Optimise(loss="reinforce"), dtype
        )
        rows = sequences_of(forest, seed)
        totals = totals_of(rows)
        trainer.masters.clear()
        for row in rows:
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
                result = forward(trainer.model, row)
            loss, _ = trainer.loss.compute(gather.tokens(row, result), totals)
            loss.backward()
        gradients[kind] = torch.cat([g.flatten() for g in trainer.masters.gradients()])
        assert gradients[kind].dtype is torch.float32
    errors = {
        kind: norm_of(gradients[kind] - gradients["float32"], gradients["float32"])
        for kind in ("bfloat16", "autocast")
    }

    assert 1e-4 < errors["autocast"] < EXACT and 1e-4 < errors["bfloat16"] < EXACT, errors
    assert norm_of(gradients["bfloat16"] - gradients["autocast"], gradients["float32"]) < APART
