"""The loss of one-token rollouts (arXiv 2509.26313): an example, its gradients, and its bound."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from methods.advantages import otr
from services.learner import losses
from services.learner.losses.aggregate import Totals
from services.learner.model import tempered
from services.learner.model.tempered import Softening
from tests.learner.hand_made_tokens import tokens


def arrays(places: int, readout_E: Any, token_E: Any, temperature: Any) -> Any:
    """Return the arrays of a sequence that a pass reads."""
    return SimpleNamespace(
        place_R=np.arange(places),
        temperature_R=np.asarray(temperature, np.float64),
        readout_E=np.asarray(readout_E),
        token_E=np.asarray(token_E),
    )


def loss_of(logits: torch.Tensor, label: int, **settings: float) -> torch.Tensor:
    """Return the loss of one place whose output layer is the identity."""
    single, loss = arrays(1, [0], [label], [1.0]), losses.build("otr", settings)
    assert loss.softening is not None
    soft_E, mean_R = tempered.softened(
        logits[None], torch.eye(len(logits), dtype=logits.dtype), single, loss.softening
    )
    inputs = tokens(logits.log_softmax(0)[label][None, None])
    mean = None if mean_R is None else mean_R[None]
    gathered = inputs.__class__(**{**vars(inputs), "soft_P_T": soft_E[None], "soft_mean_P_T": mean})
    value, measures = loss.compute(gathered, Totals(1, 1, 1.0))
    assert measures["clip_fraction"] == (0.0, 1.0)
    return value


@pytest.mark.parametrize(
    ("beta", "value", "direction"),
    [(0.0, 0.3825, (-0.1663, 0.1901, -0.0238)), (-0.1, 0.3281, (-0.1753, 0.2054, -0.0301))],
)
def test_an_example_by_hand(beta: float, value: float, direction: tuple[float, ...]) -> None:
    """π = (.7, .2, .1), the label is the second, κ = 1.3."""
    logits = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log().requires_grad_()
    loss = loss_of(logits, 1, kappa=1.3, beta=beta)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(value, abs=1e-4)
    assert loss.item() == pytest.approx(
        otr.expected_loss(logits.detach().log_softmax(0).numpy(), 1, beta), abs=1e-12
    )
    assert logits.grad is not None
    np.testing.assert_allclose(-logits.grad.numpy(), direction, atol=1e-4)


def test_draws_go_to_it() -> None:
    """The mean over draws of K = 256 tokens, value and gradient."""
    logits, rng = torch.tensor([1.0, -0.5, 0.3, 2.0], dtype=torch.float64), np.random.default_rng(5)
    share = otr.softened(logits.log_softmax(0).numpy())
    drawn = [otr.weights(rng.choice(4, 256, p=share), 2, -0.1, 4) for _ in range(400)]
    inputs = logits.clone().requires_grad_()
    loss = loss_of(inputs, 2, beta=-0.1)
    loss.backward()  # type: ignore[no-untyped-call]
    assert inputs.grad is not None
    ascents = np.stack([otr.ascent(logits.log_softmax(0).numpy(), w) for w in drawn])
    error = ascents.std(0, ddof=1) / np.sqrt(len(ascents))
    assert (np.abs(ascents.mean(0) + inputs.grad.numpy()) < 4 * error).all()


@pytest.mark.parametrize("cap", [None, 3.0])
def test_many_chunks_and_their_gradients(
    monkeypatch: pytest.MonkeyPatch, cap: float | None
) -> None:
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, 8, dtype=torch.float64, requires_grad=True) for n in (11, 17))
    readout_E = np.sort(np.concatenate([np.arange(11), np.array([0, 3, 3, 10])]))
    token_E, temperature = (np.arange(15) * 3) % 17, np.linspace(0.5, 1.5, 11)
    inputs = arrays(11, readout_E, token_E, temperature)

    def plain(h: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        full = h @ w.t()
        if cap is not None:
            full = torch.tanh(full / cap) * cap
        full = full / torch.from_numpy(temperature)[:, None]
        soft = (full / 1.3).log_softmax(1).detach()
        return soft[readout_E, token_E], (soft.exp() * full.log_softmax(1).clamp_min(-20.0)).sum(1)

    def ours(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        mean_R = tempered.softened(h, w, inputs, Softening(1.3, True), cap)[1]
        assert mean_R is not None
        return mean_R

    expected = plain(hidden, weight)
    for numbers in (10**6, 3 * 17):
        monkeypatch.setattr("services.learner.model.logprobs.CHUNK_NUMBERS", numbers)
        soft_E, mean_R = tempered.softened(hidden, weight, inputs, Softening(1.3, True), cap)
        torch.testing.assert_close(soft_E, expected[0])
        torch.testing.assert_close(mean_R, expected[1])
        assert not soft_E.requires_grad
        got = torch.autograd.grad(ours(hidden, weight).sum(), (hidden, weight))
        want = torch.autograd.grad(plain(hidden, weight)[1].sum(), (hidden, weight))
        for actual, reference in zip(got, want, strict=True):
            torch.testing.assert_close(actual, reference)


def test_a_token_that_is_far_away_is_pushed_no_further() -> None:
    """With β < 0 the loss would have no lower bound without this one."""
    far = torch.tensor([0.0, 0.0, -60.0], dtype=torch.float64).requires_grad_()
    loss_of(far, 0, kappa=100.0, beta=-0.5).backward()  # type: ignore[no-untyped-call]
    assert far.grad is not None and abs(float(far.grad[2])) < 1e-20
    near = torch.tensor([0.0, 0.0, -10.0], dtype=torch.float64).requires_grad_()
    loss_of(near, 0, kappa=100.0, beta=-0.5).backward()  # type: ignore[no-untyped-call]
    assert near.grad is not None and float(near.grad[2]) > 0.1


def test_without_beta_nothing_is_asked_of_other_tokens() -> None:
    loss = losses.build("otr", {})
    assert loss.softening == (1.3, False)
    assert losses.build("otr", {"beta": -0.1}).softening == (1.3, True)
    assert (
        losses.build("ppo-clip", {}).softening is None and losses.build("dpo", {}).softening is None
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"kappa": 0}, "kappa 0 must be above 0"), ({"beta": 1}, "beta 1 must lie in")],
)
def test_settings_that_mean_nothing(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        losses.build("otr", settings)
