"""Importance weights, rejection and forced tokens, against tables of numbers."""

import math
from typing import Any

import pytest
import torch

from banyan.segment import Origin
from services.learner import losses
from services.learner.losses.aggregate import Totals
from services.learner.losses.importance import Importance
from tests.learner.hand_made_tokens import table, tokens
from tests.learner.loss_values import gradient, value


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"cap": 2.0}, (0.5, 1.0, 2.0)),
        ({"cap": 2.0, "bound": "mask"}, (0.5, 1.0, 0.0)),
        ({"cap": 2.0, "floor": 0.8}, (0.8, 1.0, 2.0)),
        ({"cap": 2.0, "floor": 0.8, "bound": "mask"}, (0.0, 1.0, 0.0)),
        ({"cap": 0.0}, (0.5, 1.0, 3.0)),
        ({"cap": 2.0, "normalise": True}, (0.5 / 3.5 * 3, 3 / 3.5, 6 / 3.5)),
    ],
)
def test_truncated_importance_sampling_by_token(
    settings: dict[str, Any], expected: tuple[float, ...]
) -> None:
    """Ratios (.5, 1, 3), cap 2."""
    loss = losses.build(
        "reinforce", {"importance": {"level": "token", **settings}, "mode": "seq-mean-token-sum"}
    )
    logp = table([0.0, 0.0, 0.0]).requires_grad_()
    drawn = tokens(logp, old=0.0, drawn=[-math.log(0.5), 0.0, -math.log(3)])
    mean = (lambda s: s[0] / s[1])(loss.survey(drawn)) if loss.needs_survey else 1.0
    value, measures = loss.compute(drawn, Totals(3, 1, 3.0, mean))
    value.backward()
    assert logp.grad is not None
    assert (-logp.grad[0]).tolist() == pytest.approx(expected)
    beyond = {0.0: 0, 2.0: 1}[settings["cap"]] + ("floor" in settings)
    assert measures["truncated_share"] == (beyond, 3)


def test_one_weight_a_path_is_the_product_of_its_tokens() -> None:
    ratios = table([[0.5, 1.0, 3.0], [0.5, 0.5, 1.0]])
    whole = {"mask": [[1, 1, 1], [1, 1, 0]], "drawn": -ratios.log(), "old": 0.0}
    importance = losses.build("reinforce", {"importance": {}}).importance
    weight, beyond = importance.weigh(tokens(torch.zeros(2, 3, dtype=torch.float64), **whole))
    assert weight[0].tolist() == pytest.approx([1.5] * 3)
    assert weight[1, :2].tolist() == pytest.approx([0.25] * 2)
    assert not beyond.any()
    sums = importance.sums(tokens(torch.zeros(2, 3, dtype=torch.float64), **whole))
    assert [float(x) for x in sums] == pytest.approx([1.75, 2])


@pytest.mark.parametrize(("old", "drawn", "expected"), [(-1.0, -1.2, 1.0), (-1.5, -1.0, 0.607)])
def test_darts_weights_with_a_cap_of_one(old: float, drawn: float, expected: float) -> None:
    """e^.2 = 1.221 is capped; e^−.5 = .607 is not. On the clipped loss, per token."""
    settings = {"importance": {"level": "token", "cap": 1.0}}
    got, _ = value("ppo-clip", settings, old, proximal=old, behaviour=drawn, foreign=1)
    assert got == pytest.approx(-expected, abs=5e-4)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"by": "k1", "over": "sum", "low": 0.5, "high": 2.0}, [[1, 1], [0, 0], [0, 0], [1, 1]]),
        (
            {"by": "k1", "over": "mean", "low": 0.999, "high": 1.001},
            [[1, 1], [0, 0], [0, 0], [1, 1]],
        ),
        ({"by": "k1", "over": "token", "low": 0.5, "high": 2.0}, [[1, 1], [1, 0], [1, 1], [0, 0]]),
        ({"by": "k1", "over": "worst", "low": 0.5, "high": 2.0}, [[1, 1], [0, 0], [1, 1], [0, 0]]),
        ({"by": "k1", "over": "worst", "low": 1e-4, "high": 1e4}, [[1, 1], [1, 1], [1, 1], [1, 1]]),
        ({"by": "k2", "over": "mean", "low": 0.0, "high": 0.1}, [[1, 1], [0, 0], [1, 1], [0, 0]]),
        ({"by": "k3", "over": "mean", "low": 0.0, "high": 0.01}, [[1, 1], [0, 0], [0, 0], [0, 0]]),
        ({"by": "k3", "high": 0.01}, [[1, 1], [0, 0], [0, 0], [0, 0]]),
        # 1.5 − ln 1.5 − 1 = 0.0945, also as a path's mean.
        ({"by": "k3", "high": 0.1}, [[1, 1], [0, 0], [1, 1], [0, 0]]),
        ({"by": "k2", "high": 0.1}, [[1, 1], [0, 0], [1, 1], [0, 0]]),  # ln² 1.5 / 2 = 0.0822
        ({"by": "k3"}, [[1, 1], [0, 0], [0, 0], [0, 0]]),
        ({}, [[1, 1], [0, 0], [0, 0], [1, 1]]),
        ({"by": "k3", "over": "sum", "low": 0.0, "high": 0.5}, [[1, 1], [0, 0], [1, 1], [0, 0]]),
        ({"by": "k3", "over": "token", "low": 0.0, "high": 0.2}, [[1, 1], [1, 0], [1, 1], [0, 0]]),
    ],
)
def test_rejection_by_statistics(settings: dict[str, Any], kept: list[list[int]]) -> None:
    """Ratios: (1, 1); (1, 3); (1.5, 1.5); (2.5, .4), whose product is 1."""
    ratios = table([[1.0, 1.0], [1.0, 3.0], [1.5, 1.5], [2.5, 0.4]])
    logp = torch.zeros(4, 2, dtype=torch.float64).requires_grad_()
    loss = losses.build("reinforce", {"reject": settings, "mode": "seq-mean-token-sum"})
    value, measures = loss.compute(tokens(logp, old=0.0, drawn=-ratios.log()), Totals(8, 4))
    value.backward()
    assert logp.grad is not None
    assert (-4 * logp.grad).tolist() == kept
    assert measures["rejected_share"] == (8 - sum(map(sum, kept)), 8)


def test_forced_tokens_take_a_loss_as_the_recipe_says() -> None:
    """Shaped (LUFFY, arXiv 2504.14945): −A π / (π + .1), gradient −A .1 π / (π + .1)², no ratio."""
    p, recorded = (
        0.3,
        {"old": [0.0, math.log(0.3)], "origin": [0, 2], "foreign": [0, 1], "drawn": [-1.0, 0.0]},
    )
    settings = {
        "forced": {"teacher": "shaped"},
        "importance": {"level": "token"},
        "mode": "seq-mean-token-sum",
    }
    logs = [math.log(1.1), math.log(p)]
    both = value("ppo-clip", settings, logs, Totals(2, 1), **recorded)
    assert both[0] == pytest.approx(-1.1 * 2.0 - 0.75)  # e^1 is truncated at 2
    assert both[1]["truncated_share"] == (1, 1)
    slope = gradient("ppo-clip", {"forced": {"teacher": "shaped"}}, logs, **recorded)
    alone = gradient("ppo-clip", {}, logs[:1])
    assert slope == pytest.approx([alone[0], -0.1 * p / (p + 0.1) ** 2])
    as_policy = gradient("ppo-clip", {"forced": {"teacher": "policy"}}, logs, **recorded)
    assert as_policy == pytest.approx([-1.1, -1.0])


@pytest.mark.parametrize(("bound", "weight"), [("mask", 0.0), ("truncate", 0.5)])
def test_a_forced_token_is_beyond_no_bound(bound: str, weight: float) -> None:
    """It was not drawn, so nothing is corrected, even with a cap below 1."""
    two_tokens = tokens([0.0, 0.0], origin=[0, 2])
    weights, beyond = Importance(level="token", cap=0.5, bound=bound).weigh(two_tokens)
    assert (weights.tolist(), beyond.tolist()) == ([[weight, 1.0]], [[True, False]])


def test_without_a_teachers_token_the_shaped_loss_is_the_ordinary_one() -> None:
    """SCOPE (arXiv 2602.24110): z = 0 is exactly GRPO; tokens before a teacher's are unchanged."""
    logs, shaped = [math.log(1.1), math.log(0.7), math.log(1.6)], {"forced": {"teacher": "shaped"}}
    assert value("ppo-clip", shaped, logs) == value("ppo-clip", {}, logs)
    assert gradient("ppo-clip", shaped, logs) == gradient("ppo-clip", {}, logs)
    alone = gradient("ppo-clip", {}, logs, advantage=0.75)
    mixed = gradient("ppo-clip", shaped, logs, advantage=0.75, origin=[0, 0, int(Origin.TEACHER)])
    assert mixed[:2] == alone[:2] and mixed[2] != alone[2]
