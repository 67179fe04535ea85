"""Losses and their aggregation against the unit-test tables of the method cards."""

import math
from typing import Any

import pytest
import torch

from banyan.segment import Origin
from services.learner import losses
from services.learner.losses.aggregate import Aggregate, Totals
from services.learner.losses.composed import Measures
from services.learner.losses.echo_clip import EchoClip
from services.learner.losses.importance import Importance
from services.learner.losses.kl import ESTIMATORS, estimate
from services.learner.training.step_sums import mismatch
from tests.learner.tokens import table, tokens

ONE = Totals(tokens=1, paths=1, unique=1.0)


def value(name: str, settings: dict[str, Any], logp: Any, totals: Totals = ONE, **more: Any) -> tuple[float, Measures]:
    loss, measures = losses.build(name, settings).of(tokens(logp, **more), totals)
    return float(loss), measures


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
    got, said = value("ppo-clip", settings, math.log(ratio), advantage=advantage)
    assert got == pytest.approx(expected)
    assert said["clip_fraction"] == (float(clipped), 1)


@pytest.mark.parametrize(
    ("settings", "foreign", "expected"),
    [({}, 1, 3.0), ({"delta": 4.0}, 1, 4.0), ({"delta": 4.0}, 0, 3.0), ({"delta": 4.0, "dual_clip": 0.0}, 0, 5.0)],
)
def test_foreign_tokens_have_a_two_sided_clip_of_their_own(settings: Any, foreign: int, expected: float) -> None:
    """δ = 4 (INTELLECT-2) bounds what a negative advantage and a ratio of 5 may cost."""
    got, _ = value("ppo-clip", settings, math.log(5), advantage=-1, foreign=foreign)
    assert got == pytest.approx(expected)
    if foreign:
        assert value("ppo-clip", settings, math.log(5), advantage=1, foreign=1)[0] == pytest.approx(-1.2)


def gradient(name: str, settings: dict[str, Any], logp: list[float], **more: Any) -> list[float]:
    leaf = table(logp).requires_grad_()
    totals = Totals(tokens=len(logp), paths=1, unique=len(logp))
    losses.build(name, settings).of(tokens(leaf, **more), totals)[0].backward()
    assert leaf.grad is not None
    return (leaf.grad[0] * len(logp)).tolist()


def test_a_clipped_token_has_no_gradient() -> None:
    assert gradient("ppo-clip", {}, [math.log(1.5), math.log(1.1)]) == pytest.approx([0.0, -1.1])


def test_cispo_takes_verls_example_which_has_no_lower_bound() -> None:
    logs = [math.log(1.5), math.log(0.01)]
    assert gradient("cispo", {"clip_low": 10.0, "clip_high": 0.2}, logs) == pytest.approx([-1.2, -0.01])


def test_cispo_bounds_the_weight_and_never_the_gradient() -> None:
    """r = 1.5 and .5 under a weight of at most 1.2; then the advised 5."""
    settings = {"clip_low": 1.0, "clip_high": 0.2}
    assert gradient("cispo", settings, [math.log(1.5), math.log(0.5)]) == pytest.approx([-1.2, -0.5])
    got, said = value("cispo", settings, -0.4, old=-0.4 - math.log(1.5))
    assert got == pytest.approx(1.2 * 0.4)
    assert said["clip_fraction"] == (1.0, 1)
    assert gradient("cispo", {}, [math.log(7.0)]) == pytest.approx([-5.0])


def test_gspo_has_one_ratio_a_path() -> None:
    """Log-ratios (.1, −.1, .2, 0): s = 1.0513, their product 1.2214; every token has its share of the gradient."""
    logs, wide = [0.1, -0.1, 0.2, 0.0], {"clip_low": 0.9, "clip_high": 0.9}
    assert value("gspo", wide, logs)[0] == pytest.approx(-1.0513, abs=1e-4)
    assert gradient("gspo", wide, logs) == pytest.approx([-1.0513] * 4, abs=1e-4)
    product = {**wide, "over": "product"}
    assert value("gspo", product, logs)[0] == pytest.approx(-1.2214, abs=1e-4)
    assert gradient("gspo", product, logs) == pytest.approx([-4 * 1.2214] * 4, abs=4e-4)  # of the sum of logs, not its mean
    got, said = value("gspo", {}, logs)
    assert got == pytest.approx(-1.0004)
    assert said["clip_fraction"] == (4, 4)
    assert gradient("gspo", {}, logs) == [0.0] * 4


@pytest.mark.parametrize(("advantage", "expected"), [(1, -2.4), (-1, 2.5)])
def test_decoupled_clips_around_the_proximal_policy(advantage: float, expected: float) -> None:
    """μ = .2, π_old = .4, π = .5, ε = .2: r = 2.5, bounds [1.6, 2.4]."""
    probabilities = {"behaviour": math.log(0.2), "proximal": math.log(0.4), "foreign": 1}
    got, _ = value("decoupled", {}, math.log(0.5), advantage=advantage, **probabilities)
    assert got == pytest.approx(expected)
    assert value("ppo-clip", {}, math.log(0.5), advantage=1, **probabilities)[0] == pytest.approx(-1.2)  # around μ


def test_replayed_data_of_the_same_weights_has_the_gradient_of_fresh_data() -> None:
    logs = [-0.3, -1.2, -2.0]
    fresh = gradient("ppo-clip", {}, logs, old=logs)
    assert gradient("decoupled", {}, logs, proximal=logs, behaviour=logs, foreign=1) == pytest.approx(fresh)


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
def test_truncated_importance_sampling_by_token(settings: dict[str, Any], expected: tuple[float, ...]) -> None:
    """Ratios (.5, 1, 3), cap 2."""
    loss = losses.build("reinforce", {"importance": {"level": "token", **settings}, "mode": "seq-mean-token-sum"})
    logp = table([0.0, 0.0, 0.0]).requires_grad_()
    seen = tokens(logp, old=0.0, drawn=[-math.log(0.5), 0.0, -math.log(3)])
    mean = (lambda s: s[0] / s[1])(loss.survey(seen)) if loss.surveys else 1.0
    value, said = loss.of(seen, Totals(3, 1, 3.0, mean))
    value.backward()
    assert logp.grad is not None
    assert (-logp.grad[0]).tolist() == pytest.approx(expected)
    beyond = {0.0: 0, 2.0: 1}[settings["cap"]] + ("floor" in settings)
    assert said["truncated_share"] == (beyond, 3)


def test_one_weight_a_path_is_the_product_of_its_tokens() -> None:
    ratios = table([[0.5, 1.0, 3.0], [0.5, 0.5, 1.0]])
    whole = {"mask": [[1, 1, 1], [1, 1, 0]], "drawn": -ratios.log(), "old": 0.0}
    importance = losses.build("reinforce", {"importance": {}}).importance  # type: ignore[attr-defined]
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
        ({"by": "k1", "over": "mean", "low": 0.999, "high": 1.001}, [[1, 1], [0, 0], [0, 0], [1, 1]]),
        ({"by": "k1", "over": "token", "low": 0.5, "high": 2.0}, [[1, 1], [1, 0], [1, 1], [0, 0]]),
        ({"by": "k1", "over": "worst", "low": 0.5, "high": 2.0}, [[1, 1], [0, 0], [1, 1], [0, 0]]),
        ({"by": "k1", "over": "worst", "low": 1e-4, "high": 1e4}, [[1, 1], [1, 1], [1, 1], [1, 1]]),
        ({"by": "k2", "over": "mean", "low": 0.0, "high": 0.1}, [[1, 1], [0, 0], [1, 1], [0, 0]]),
        ({"by": "k3", "over": "mean", "low": 0.0, "high": 0.01}, [[1, 1], [0, 0], [0, 0], [0, 0]]),
        ({"by": "k3", "high": 0.01}, [[1, 1], [0, 0], [0, 0], [0, 0]]),
        ({"by": "k3", "high": 0.1}, [[1, 1], [0, 0], [1, 1], [0, 0]]),  # 1.5 − ln 1.5 − 1 = 0.0945, also as a path's mean
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
    value, said = loss.of(tokens(logp, old=0.0, drawn=-ratios.log()), Totals(8, 4))
    value.backward()
    assert logp.grad is not None
    assert (-4 * logp.grad).tolist() == kept
    assert said["rejected_share"] == (8 - sum(map(sum, kept)), 8)


def test_bypass_takes_ratios_to_the_sampling_policy() -> None:
    """old behaviour: r = π / μ for the policy's own tokens too, without a proximal policy."""
    probabilities = {"behaviour": math.log(0.2), "proximal": math.log(0.5), "foreign": 0}
    assert value("ppo-clip", {"old": "behaviour"}, math.log(0.5), **probabilities)[0] == pytest.approx(-1.2)
    assert value("ppo-clip", {}, math.log(0.5), **probabilities)[0] == pytest.approx(-1.0)


@pytest.mark.parametrize(("confidence", "expected"), [(1.0, 0.125), (0.8, 0.1535), (0.5, 0.1821), (0.0, 0.1973)])
def test_echos_range_by_confidence(confidence: float, expected: float) -> None:
    eps = float(EchoClip().range(torch.tensor(confidence, dtype=torch.float64)))
    assert eps == pytest.approx(expected, abs=5e-5)
    logp = [math.log(1.5)] * 2
    got, _ = value("echo-clip", {}, logp, Totals(2, 1), proximal=0.0, behaviour=math.log(max(confidence, 1e-300)))
    assert got == pytest.approx(-1 - expected, abs=5e-5)


def test_echos_confidence_is_that_of_the_tail() -> None:
    p = table([[0.1, 0.2, 0.4, 0.6], [0.9, 0.5, 0.1, 0.1]])
    seen = tokens(torch.zeros(2, 4, dtype=torch.float64), behaviour=p.log(), mask=[[1, 1, 1, 1], [1, 1, 0, 0]])
    assert EchoClip(tail=2).confidence(seen).tolist() == pytest.approx([0.5, 0.7])
    assert EchoClip(tail=16).confidence(seen).tolist() == pytest.approx([0.325, 0.7])


def test_estimators_of_kl() -> None:
    """π = .5, ref = .25: .6931, .2402, .1931; the expectations of π = (.5, .5), ref = (.25, .75): .1438 and k2's .1612."""
    p, ref = table([0.5, 0.5]).log(), table([0.25, 0.75]).log()
    one = {name: float(estimate(name, p, ref)[0, 0]) for name in ESTIMATORS}
    assert [one[n] for n in ("k1", "k2", "k3", "k3+")] == pytest.approx([0.6931, 0.2402, 0.1931, 0.1931], abs=1e-4)
    mean = {name: float((0.5 * estimate(name, p, ref)).sum()) for name in ESTIMATORS}
    assert [mean[n] for n in ("k1", "k2", "k3")] == pytest.approx([0.1438, 0.1612, 0.1438], abs=1e-4)


def test_only_k2_has_the_gradient_of_kl_as_a_loss() -> None:
    """∇ KL(π ‖ ref) for π = softmax(z), exactly, against the expected gradient of each estimate."""
    z, ref = torch.tensor([0.3, -0.7], dtype=torch.float64).requires_grad_(), table([0.25, 0.75]).log()[0]
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
    got, said = value("ppo-clip", {"kl": {"coef": 0.1}}, math.log(0.5), **base)
    assert got == pytest.approx(0.01931, abs=1e-5)
    assert said["reference_kl"][0] == pytest.approx(0.1931, abs=1e-4)
    times = {"kl": {"coef": 0.1, "estimator": "k1", "by_ratio": True}}
    assert value("ppo-clip", times, math.log(0.5), **(base | {"old": math.log(0.4)}))[0] == pytest.approx(
        0.06931 * 1.25, abs=1e-5
    )
    assert value("ppo-clip", {"entropy": 0.5}, 0.0, advantage=0.0, entropy=table(0.7))[0] == pytest.approx(-0.35)


def test_sibling_pairs() -> None:
    """β ((−1 + 2) − (−3 + 2.5)) = .15: −log σ(.15) = .6210; and the gradient ±β σ(−.15) on each token of a side."""
    logp = table([[-0.4, -0.6], [-3.0, 9.0]]).requires_grad_()
    seen = tokens(logp, reference=[[-1.0, -1.0], [-2.5, 0.0]], mask=[[1, 1], [1, 0]])
    loss, said = losses.build("dpo", {"beta": 0.1}).of(seen, Totals(3, 2))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(1 + math.exp(-0.15)))
    assert float(loss.detach()) == pytest.approx(0.6210, abs=1e-4)
    slope = 0.1 / (1 + math.exp(0.15))
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, table([[-slope, -slope], [slope, 0.0]]))
    assert said["pairs_right"] == (1, 1)


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
    """Lengths 2 and 6, losses 1 and 0; as one row, and as a row each."""
    mask = torch.tensor([[True] * 2 + [False] * 4, [True] * 6])
    loss = torch.tensor([[1.0] * 6, [0.0] * 6])
    totals = Totals(tokens=8, paths=2)
    assert float((aggregate.weights(mask, totals) * loss).sum()) == pytest.approx(expected)
    parts = [float((aggregate.weights(mask[i : i + 1], totals) * loss[i : i + 1]).sum()) for i in range(2)]
    assert sum(parts) == pytest.approx(expected)


@pytest.mark.parametrize(("mode", "paths", "nodes"), [("token-mean", 4 / 6, 2 / 4), ("seq-mean-token-sum", 2.0, 1.0)])
def test_a_trunk_counts_once_a_path_or_once(mode: str, paths: float, nodes: float) -> None:
    """Two trunk tokens with loss 1 under two leaves of one token with loss 0."""
    mask, share = torch.ones(2, 3, dtype=torch.bool), table([[0.5, 0.5, 1.0]] * 2)
    loss, totals = table([[1.0, 1.0, 0.0]] * 2), Totals(6, 2, 4.0)
    for count, expected in (("paths", paths), ("nodes", nodes)):
        weight = Aggregate(mode, count=count).weights(mask, totals, torch.float64, share)
        assert float((weight * loss).sum()) == pytest.approx(expected)


def test_forced_tokens_take_a_loss_as_the_recipe_says() -> None:
    """Shaped (LUFFY): −A π / (π + .1), with the gradient −A .1 π / (π + .1)²; no ratio, no weight. The rest is as ever."""
    p, facts = 0.3, {"old": [0.0, math.log(0.3)], "origin": [0, 2], "foreign": [0, 1], "drawn": [-1.0, 0.0]}
    settings = {"forced": {"teacher": "shaped"}, "importance": {"level": "token"}, "mode": "seq-mean-token-sum"}
    logs = [math.log(1.1), math.log(p)]
    both = value("ppo-clip", settings, logs, Totals(2, 1), **facts)
    assert both[0] == pytest.approx(-1.1 * 2.0 - 0.75)  # e^1 is truncated at 2
    assert both[1]["truncated_share"] == (1, 1)
    slope = gradient("ppo-clip", {"forced": {"teacher": "shaped"}}, logs, **facts)
    alone = gradient("ppo-clip", {}, logs[:1])
    assert slope == pytest.approx([alone[0], -0.1 * p / (p + 0.1) ** 2])
    as_policy = gradient("ppo-clip", {"forced": {"teacher": "policy"}}, logs, **facts)
    assert as_policy == pytest.approx([-1.1, -1.0])


@pytest.mark.parametrize(("bound", "weight"), [("mask", 0.0), ("truncate", 0.5)])
def test_a_forced_token_is_beyond_no_bound(bound: str, weight: float) -> None:
    """Nobody drew it, so nothing is corrected, also where the cap is below 1."""
    some = tokens([0.0, 0.0], origin=[0, 2])
    found, beyond = Importance(level="token", cap=0.5, bound=bound).weigh(some)
    assert (found.tolist(), beyond.tolist()) == ([[weight, 1.0]], [[True, False]])


def test_without_a_teachers_token_the_shaped_loss_is_the_ordinary_one() -> None:
    """Card 38: z = 0 gives exactly GRPO; and tokens before a teacher's have the gradient that they have anyhow."""
    logs, shaped = [math.log(1.1), math.log(0.7), math.log(1.6)], {"forced": {"teacher": "shaped"}}
    assert value("ppo-clip", shaped, logs) == value("ppo-clip", {}, logs)
    assert gradient("ppo-clip", shaped, logs) == gradient("ppo-clip", {}, logs)
    alone = gradient("ppo-clip", {}, logs, advantage=0.75)
    mixed = gradient("ppo-clip", shaped, logs, advantage=0.75, origin=[0, 0, int(Origin.TEACHER)])
    assert mixed[:2] == alone[:2] and mixed[2] != alone[2]


def test_k3_is_the_divergence() -> None:
    """π = (.5, .5) sampled, (.25, .75) trained: KL .1438 = E k3."""
    sampled, trained = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    assert float((0.5 * mismatch(sampled, trained)).sum()) == pytest.approx(0.1438, abs=1e-4)
    assert float(mismatch(torch.tensor(0.5).log(), torch.tensor(0.25).log())) == pytest.approx(0.1931, abs=1e-4)
