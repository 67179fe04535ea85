"""Losses and their aggregation against the unit-test table of the method cards."""

import math

import pytest
import torch

from banyan.errors import InvalidInput
from services.learner import losses
from services.learner.losses.aggregate import Aggregate, Totals
from services.learner.losses.ppo_clip import PpoClip
from services.learner.trainer import mismatch


def one(loss: PpoClip, advantage: float, ratio: float) -> tuple[float, bool]:
    logp = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
    value, clipped = loss.per_token(logp, torch.zeros_like(logp), torch.full_like(logp, advantage), logp > -99)
    return float(value), bool(clipped)


@pytest.mark.parametrize(
    ("settings", "advantage", "ratio", "expected", "clipped"),
    [
        ({}, 1, 1.5, -1.2, True),
        ({"clip_high": 0.28}, 1, 1.5, -1.28, True),
        ({}, -1, 5, 3.0, True),
        ({"dual_clip": 0.0}, -1, 5, 5.0, False),
        ({}, -1, 0.5, 0.8, True),
        ({}, 1, 0.5, -0.5, False),
        ({}, -1, 1.5, 1.5, False),
        ({}, 1, 1.0, -1.0, False),
    ],
)
def test_clip_table(settings: dict[str, float], advantage: float, ratio: float, expected: float, clipped: bool) -> None:
    value, was = one(PpoClip(**settings), advantage, ratio)
    assert value == pytest.approx(expected)
    assert was is clipped


def test_a_clipped_token_has_no_gradient() -> None:
    logp = torch.tensor([[math.log(1.5), math.log(1.1)]], requires_grad=True)
    value, _ = PpoClip().per_token(logp, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
    value.sum().backward()
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, torch.tensor([[0.0, -1.1]]))


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (Aggregate(), 0.25),
        (Aggregate("seq-mean-token-mean"), 0.5),
        (Aggregate("seq-mean-token-sum"), 1.0),
        (Aggregate("seq-mean-token-sum-norm", 10), 0.2),
    ],
)
def test_aggregation_of_two_sequences(aggregate: Aggregate, expected: float) -> None:
    """Lengths 2 and 6, losses 1 and 0; as one row, and as a row each."""
    mask = torch.tensor([[True] * 2 + [False] * 4, [True] * 6])
    loss = torch.tensor([[1.0] * 6, [0.0] * 6])
    totals = Totals(tokens=8, paths=2)
    assert float((aggregate.weights(mask, totals) * loss).sum()) == pytest.approx(expected)
    parts = [float((aggregate.weights(mask[i : i + 1], totals) * loss[i : i + 1]).sum()) for i in range(2)]
    assert sum(parts) == pytest.approx(expected)


def test_k3_is_the_divergence() -> None:
    """π = (.5, .5) sampled, (.25, .75) trained: KL .1438 = E k3."""
    sampled, trained = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    assert float((0.5 * mismatch(sampled, trained)).sum()) == pytest.approx(0.1438, abs=1e-4)
    assert float(mismatch(torch.tensor(0.5).log(), torch.tensor(0.25).log())) == pytest.approx(0.1931, abs=1e-4)


def test_bad_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="no setting 'clip'"):
        losses.build("ppo-clip", {"clip": 0.2})
    with pytest.raises(InvalidInput, match="mode 'mean'"):
        losses.build("reinforce", {"mode": "mean"})
    with pytest.raises(InvalidInput, match="needs `length`"):
        losses.build("ppo-clip", {"mode": "seq-mean-token-sum-norm"})
    with pytest.raises(InvalidInput, match="dual_clip"):
        losses.build("ppo-clip", {"dual_clip": 1.1})
