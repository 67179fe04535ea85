"""Losses and their aggregation against tables of numbers, from the papers or computed by hand."""

import math
from typing import Any

import pytest
import torch

from services.learner import losses
from services.learner.losses.aggregate import Aggregate, Totals
from services.learner.losses.echo_clip import EchoClip
from services.learner.losses.kl import ESTIMATORS, estimate
from services.learner.training.step_sums import mismatch
from tests.learner.hand_made_tokens import table, tokens
from tests.learner.loss_values import gradient, value


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
def test_clip_table(
    settings: dict[str, float], advantage: float, ratio: float, expected: float, clipped: bool
) -> None:
    got, measures = value("ppo-clip", settings, math.log(ratio), advantage=advantage)
    assert got == pytest.approx(expected)
    assert measures["clip_fraction"] == (float(clipped), 1)


@pytest.mark.parametrize(
    ("settings", "foreign", "expected"),
    [
        ({}, 1, 3.0),
        ({"delta": 4.0}, 1, 4.0),
        ({"delta": 4.0}, 0, 3.0),
        ({"delta": 4.0, "dual_clip": 0.0}, 0, 5.0),
    ],
)
def test_foreign_tokens_have_a_two_sided_clip_of_their_own(
    settings: Any, foreign: int, expected: float
) -> None:
    """δ = 4 (INTELLECT-2) bounds what a negative advantage and a ratio of 5 may cost."""
    got, _ = value("ppo-clip", settings, math.log(5), advantage=-1, foreign=foreign)
    assert got == pytest.approx(expected)
    if foreign:
        assert value("ppo-clip", settings, math.log(5), advantage=1, foreign=1)[0] == pytest.approx(
            -1.2
        )


def test_a_clipped_token_has_no_gradient() -> None:
    assert gradient("ppo-clip", {}, [math.log(1.5), math.log(1.1)]) == pytest.approx([0.0, -1.1])


def test_cispo_takes_verls_example_which_has_no_lower_bound() -> None:
    logs = [math.log(1.5), math.log(0.01)]
    assert gradient("cispo", {"clip_low": 10.0, "clip_high": 0.2}, logs) == pytest.approx(
        [-1.2, -0.01]
    )


def test_cispo_bounds_the_weight_and_never_the_gradient() -> None:
    """r = 1.5 and .5 under a weight of at most 1.2; then the advised 5."""
    settings = {"clip_low": 1.0, "clip_high": 0.2}
    assert gradient("cispo", settings, [math.log(1.5), math.log(0.5)]) == pytest.approx(
        [-1.2, -0.5]
    )
    got, measures = value("cispo", settings, -0.4, old=-0.4 - math.log(1.5))
    assert got == pytest.approx(1.2 * 0.4)
    assert measures["clip_fraction"] == (1.0, 1)
    assert gradient("cispo", {}, [math.log(7.0)]) == pytest.approx([-5.0])


def test_gspo_has_one_ratio_a_path() -> None:
    """Log-ratios (.1, −.1, .2, 0): s = 1.0513, product 1.2214; tokens share the gradient."""
    logs, wide = [0.1, -0.1, 0.2, 0.0], {"clip_low": 0.9, "clip_high": 0.9}
    assert value("gspo", wide, logs)[0] == pytest.approx(-1.0513, abs=1e-4)
    assert gradient("gspo", wide, logs) == pytest.approx([-1.0513] * 4, abs=1e-4)
    product = {**wide, "over": "product"}
    assert value("gspo", product, logs)[0] == pytest.approx(-1.2214, abs=1e-4)
    # Of the sum of logs, not their mean.
    assert gradient("gspo", product, logs) == pytest.approx([-4 * 1.2214] * 4, abs=4e-4)
    got, measures = value("gspo", {}, logs)
    assert got == pytest.approx(-1.0004)
    assert measures["clip_fraction"] == (4, 4)
    assert gradient("gspo", {}, logs) == [0.0] * 4


@pytest.mark.parametrize(("advantage", "expected"), [(1, -2.4), (-1, 2.5)])
def test_decoupled_clips_around_the_proximal_policy(advantage: float, expected: float) -> None:
    """μ = .2, π_old = .4, π = .5, ε = .2: r = 2.5, bounds [1.6, 2.4]."""
    probabilities = {"behaviour": math.log(0.2), "proximal": math.log(0.4), "foreign": 1}
    got, _ = value("decoupled", {}, math.log(0.5), advantage=advantage, **probabilities)
    assert got == pytest.approx(expected)
    around_behaviour, _ = value("ppo-clip", {}, math.log(0.5), advantage=1, **probabilities)
    assert around_behaviour == pytest.approx(-1.2)


def test_replayed_data_of_the_same_weights_has_the_gradient_of_fresh_data() -> None:
    logs = [-0.3, -1.2, -2.0]
    fresh = gradient("ppo-clip", {}, logs, old=logs)
    assert gradient(
        "decoupled", {}, logs, proximal=logs, behaviour=logs, foreign=1
    ) == pytest.approx(fresh)


def test_bypass_takes_ratios_to_the_sampling_policy() -> None:
    """With old: behaviour, r = π / μ for the policy's own tokens too, without a proximal policy."""
    probabilities = {"behaviour": math.log(0.2), "proximal": math.log(0.5), "foreign": 0}
    assert value("ppo-clip", {"old": "behaviour"}, math.log(0.5), **probabilities)[
        0
    ] == pytest.approx(-1.2)
    assert value("ppo-clip", {}, math.log(0.5), **probabilities)[0] == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("confidence", "expected"), [(1.0, 0.125), (0.8, 0.1535), (0.5, 0.1821), (0.0, 0.1973)]
)
def test_echos_range_by_confidence(confidence: float, expected: float) -> None:
    eps = float(EchoClip().range(torch.tensor(confidence, dtype=torch.float64)))
    assert eps == pytest.approx(expected, abs=5e-5)
    logp = [math.log(1.5)] * 2
    got, _ = value(
        "echo-clip",
        {},
        logp,
        Totals(2, 1),
        proximal=0.0,
        behaviour=math.log(max(confidence, 1e-300)),
    )
    assert got == pytest.approx(-1 - expected, abs=5e-5)


def test_echos_confidence_is_that_of_the_tail() -> None:
    p = table([[0.1, 0.2, 0.4, 0.6], [0.9, 0.5, 0.1, 0.1]])
    hand_made = tokens(
        torch.zeros(2, 4, dtype=torch.float64), behaviour=p.log(), mask=[[1, 1, 1, 1], [1, 1, 0, 0]]
    )
    assert EchoClip(tail=2).confidence(hand_made).tolist() == pytest.approx([0.5, 0.7])
    assert EchoClip(tail=16).confidence(hand_made).tolist() == pytest.approx([0.325, 0.7])


def test_estimators_of_kl() -> None:
    """π = .5, ref = .25: .6931, .2402, .1931.

    Expectations for π = (.5, .5), ref = (.25, .75): .1438, and .1612 of k2.
    """
    p, ref = table([0.5, 0.5]).log(), table([0.25, 0.75]).log()
    estimates = {name: float(estimate(name, p, ref)[0, 0]) for name in ESTIMATORS}
    assert [estimates[n] for n in ("k1", "k2", "k3", "k3+")] == pytest.approx(
        [0.6931, 0.2402, 0.1931, 0.1931], abs=1e-4
    )
    mean = {name: float((0.5 * estimate(name, p, ref)).sum()) for name in ESTIMATORS}
    assert [mean[n] for n in ("k1", "k2", "k3")] == pytest.approx(
        [0.1438, 0.1612, 0.1438], abs=1e-4
    )


def test_only_k2_has_the_gradient_of_kl_as_a_loss() -> None:
    """∇ KL(π ‖ ref) for π = softmax(z), exactly, against the expected gradient of each estimate."""
    z, ref = (
        torch.tensor([0.3, -0.7], dtype=torch.float64).requires_grad_(),
        table([0.25, 0.75]).log()[0],
    )
    logp = z.log_softmax(0)
    exact = torch.autograd.grad((logp.exp() * (logp - ref)).sum(), z, retain_graph=True)[0]

    def expected(name: str) -> torch.Tensor:
        weighted = logp.detach().exp() * estimate(name, logp, ref)
        return torch.autograd.grad(weighted.sum(), z, retain_graph=True)[0]

    for name in ("k2", "k3+"):
        torch.testing.assert_close(expected(name), exact)
    for name in ("k1", "k3"):
        assert (expected(name) - exact).abs().max() > 0.05


def test_kl_and_entropy_are_added_per_token() -> None:
    base = {"advantage": 0.0, "old": math.log(0.5), "reference": math.log(0.25)}
    got, measures = value("ppo-clip", {"kl": {"coef": 0.1}}, math.log(0.5), **base)
    assert got == pytest.approx(0.01931, abs=1e-5)
    assert measures["reference_kl"][0] == pytest.approx(0.1931, abs=1e-4)
    times = {"kl": {"coef": 0.1, "estimator": "k1", "by_ratio": True}}
    assert value("ppo-clip", times, math.log(0.5), **(base | {"old": math.log(0.4)}))[
        0
    ] == pytest.approx(0.06931 * 1.25, abs=1e-5)
    assert value("ppo-clip", {"entropy": 0.5}, 0.0, advantage=0.0, entropy=table(0.7))[
        0
    ] == pytest.approx(-0.35)


def test_sibling_pairs() -> None:
    """β ((−1 + 2) − (−3 + 2.5)) = .15: −log σ(.15) = .6210; gradient ±β σ(−.15) per token."""
    logp = table([[-0.4, -0.6], [-3.0, 9.0]]).requires_grad_()
    hand_made = tokens(logp, reference=[[-1.0, -1.0], [-2.5, 0.0]], mask=[[1, 1], [1, 0]])
    loss, measures = losses.build("dpo", {"beta": 0.1}).compute(hand_made, Totals(3, 2))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(1 + math.exp(-0.15)))
    assert float(loss.detach()) == pytest.approx(0.6210, abs=1e-4)
    slope = 0.1 / (1 + math.exp(0.15))
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, table([[-slope, -slope], [slope, 0.0]]))
    assert measures["pairs_right"] == (1, 1)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (Aggregate(), 0.25),
        (Aggregate("seq-mean-token-mean"), 0.5),
        (Aggregate("seq-mean-token-sum"), 1.0),
        (Aggregate("seq-mean-token-sum-norm", 10), 0.2),
        (Aggregate("seq-mean-token-sum-const", 10), 0.1),
    ],
)
def test_aggregation_of_two_sequences(aggregate: Aggregate, expected: float) -> None:
    """Lengths 2 and 6, losses 1 and 0; in one packed sequence, and in one each."""
    mask = torch.tensor([[True] * 2 + [False] * 4, [True] * 6])
    loss = torch.tensor([[1.0] * 6, [0.0] * 6])
    totals = Totals(tokens=8, paths=2)
    assert float((aggregate.weights(mask, totals) * loss).sum()) == pytest.approx(expected)
    parts = [
        float((aggregate.weights(mask[i : i + 1], totals) * loss[i : i + 1]).sum())
        for i in range(2)
    ]
    assert sum(parts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mode", "paths", "nodes"), [("token-mean", 4 / 6, 2 / 4), ("seq-mean-token-sum", 2.0, 1.0)]
)
def test_a_trunk_counts_once_a_path_or_once(mode: str, paths: float, nodes: float) -> None:
    """Two trunk tokens with loss 1 under two leaves of one token with loss 0."""
    mask, share = torch.ones(2, 3, dtype=torch.bool), table([[0.5, 0.5, 1.0]] * 2)
    loss, totals = table([[1.0, 1.0, 0.0]] * 2), Totals(6, 2, 4.0)
    for count, expected in (("paths", paths), ("nodes", nodes)):
        weight = Aggregate(mode, count=count).weights(mask, totals, torch.float64, share)
        assert float((weight * loss).sum()) == pytest.approx(expected)


def test_k3_is_the_divergence() -> None:
    """π = (.5, .5) sampled, (.25, .75) trained: KL .1438 = E k3."""
    sampled, trained = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    assert float((0.5 * mismatch(sampled, trained)).sum()) == pytest.approx(0.1438, abs=1e-4)
    assert float(mismatch(torch.tensor(0.5).log(), torch.tensor(0.25).log())) == pytest.approx(
        0.1931, abs=1e-4
    )
