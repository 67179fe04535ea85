"""Faults that must break the equality of losses on trees with their flattened form."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from services.learner import losses
from services.learner.attention import mask
from services.learner.attention.cost_model import AttentionMethod
from services.learner.losses.aggregate import Totals
from services.learner.packing import unroll
from tests.learner.hand_made_tokens import tokens
from tests.learner.mixed_batches import apart, both

WIDE = {"clip_low": 0.9, "clip_high": 0.9}


@pytest.mark.parametrize("name", ["gspo", "echo-clip", "decoupled"])
def test_a_leaking_mask_changes_every_loss(
    tiny_llama: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:

    def leak(enter: Any, leave: Any) -> torch.Tensor:
        return torch.ones(len(enter), len(enter), dtype=torch.bool).tril()

    monkeypatch.setattr(mask, "visible", leak)
    monkeypatch.setattr(mask, "choose", lambda sequence, matmuls: AttentionMethod.BLOCKS)
    (_, flat), (_, on_trees) = both(tiny_llama, 11, name, WIDE if name == "gspo" else {}, 400)
    assert apart(flat, on_trees) > 1e-2


def test_a_trunk_counted_by_each_leaf_is_not_counted_once(
    tiny_llama: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroll, "_shares", lambda view, leaf_L: np.ones(len(view.nodes)))
    (expected, flat), (got, on_trees) = both(
        tiny_llama, 11, "ppo-clip", {"count": "nodes"}, 400, True
    )
    assert abs(got - expected) > 1e-3
    assert apart(flat, on_trees) > 1e-2


def test_sums_of_advantages_are_not_enough_for_means_over_sequences() -> None:
    """A trunk token with r = 1.1 under paths of 1 and 3 tokens, A = 2, −1: lengths count."""
    log = float(np.log(1.1))
    hand_made = tokens(
        [[log, 0, 0], [log, 0, 0]],
        advantage=[[2.0] * 3, [-1.0] * 3],
        mask=[[1, 0, 0], [1, 1, 1]],
        old=0.0,
    )
    for mode, trunk_weight, same in (
        ("seq-mean-token-sum", 0.5, True),
        ("seq-mean-token-mean", 0.5, False),
    ):
        loss = losses.build("ppo-clip", {"mode": mode}).compute(hand_made, Totals(4, 2))[0]
        # The two other tokens of the longer path, r = 1, A = −1.
        rest = (1 + 1) * (0.5 if same else 0.5 / 3)
        shortcut = trunk_weight * (-2.0 * 1.1 + 1.0 * 1.1) + rest
        assert (float(loss) == pytest.approx(shortcut)) is same
    assert float(loss) == pytest.approx(-1.1 + (1.1 + 1 + 1) / 6)
