"""Draws follow the distribution and have the right log-probs."""

import numpy as np
import pytest
import torch

from banyan.draws import uniforms
from banyan.segment import Sampling
from services.rollout.engines.torch_engine.sampler import draw, kept

RNG = np.random.default_rng(0)


def logits(rows, vocabulary, scale=2.0, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).normal(size=(rows, vocabulary)).astype(np.float32) * scale
    )


def chi_square(counts, p):
    """Return statistic and degrees of freedom, with cells of expectation below 5 merged."""
    n, order = counts.sum(), np.argsort(p)
    expected, seen = p[order] * n, counts[order]
    first = int(np.searchsorted(np.cumsum(expected), 5.0)) + 1
    expected = np.concatenate(([expected[:first].sum()], expected[first:]))
    seen = np.concatenate(([seen[:first].sum()], seen[first:]))
    big = expected >= 5
    expected = np.concatenate((expected[big], [expected[~big].sum() + 1e-9]))
    seen = np.concatenate((seen[big], [seen[~big].sum()]))
    return float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1


def critical(freedom):
    """Return the chi-square that is passed with probability 0.9999 (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * np.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=1.8, top_k=20),
        Sampling(top_p=0.7),
    ],
)
def test_the_sampled_distribution_is_the_one_that_was_asked_for(sampling):
    n, z = 40_000, logits(1, 700)
    u = uniforms(np.full(n, 7, np.uint64), np.arange(n, dtype=np.uint64))
    drawn = draw(z, [sampling], [0] * n, u)
    p = torch.softmax(z[0].double() / sampling.temperature, 0)
    p = (p * kept(p.float(), sampling)).numpy()
    p = p / p.sum()
    counts = np.bincount(drawn.tokens_R, minlength=700)
    assert counts[p == 0].sum() == 0
    statistic, freedom = chi_square(counts[p > 0], p[p > 0])
    assert statistic < critical(freedom)
    wrong = torch.softmax(z[0].double() / (1.15 * sampling.temperature), 0).numpy()[p > 0]
    assert chi_square(counts[p > 0], wrong / wrong.sum())[0] > critical(freedom), (
        "another temperature must show"
    )


@pytest.mark.parametrize("vocabulary", [3, 255, 256, 257, 1000])
def test_logprobs_and_entropies_are_those_of_the_full_distribution(vocabulary):
    z = logits(5, vocabulary, seed=vocabulary)
    samplings = [Sampling(temperature=t) for t in (1.0, 0.3, 2.0, 0.0, 1.0)]
    drawn = draw(z, samplings, range(5), RNG.random(5))
    for r, sampling in enumerate(samplings):
        lp = torch.log_softmax(z[r].double() / (sampling.temperature or 1.0), 0)
        plain = torch.log_softmax(z[r].double(), 0)
        assert drawn.logprobs_R[r] == pytest.approx(float(lp[drawn.tokens_R[r]]), abs=1e-5)
        assert drawn.entropies_R[r] == pytest.approx(float(-(plain.exp() * plain).sum()), abs=1e-4)
    assert drawn.tokens_R[3] == int(z[3].argmax())


def test_rows_that_share_a_distribution_draw_as_if_they_had_their_own():
    z, samplings = logits(40, 300), [Sampling(temperature=0.5 + 0.1 * d) for d in range(40)]
    which, u = sorted(RNG.integers(0, 40, 333)), RNG.random(333)
    shared = draw(z, samplings, which, u)
    for r in range(0, 333, 7):
        own = draw(z[which[r]][None], [samplings[which[r]]], [0], u[r : r + 1])
        assert own.tokens_R[0] == shared.tokens_R[r]
        assert own.logprobs_R[0] == pytest.approx(shared.logprobs_R[r], abs=1e-6)


def test_extreme_draws_stay_inside_the_distribution():
    z = torch.full((2, 600), -torch.inf)
    z[:, 10], z[:, 599] = 0.0, 0.0
    drawn = draw(
        z, [Sampling(), Sampling()], [0, 0, 1, 1], np.array([0.0, 1 - 2**-53, 0.4999, 0.5001])
    )
    assert drawn.tokens_R.tolist() == [10, 599, 10, 599]
    assert np.allclose(drawn.logprobs_R, np.log(0.5))
    assert np.allclose(drawn.entropies_R, np.log(2))


def test_truncation_keeps_the_likeliest_and_tells_both_logprobs():
    z = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    sampling = Sampling(
        top_k=3, top_p=0.8
    )  # top_k leaves .5 .3 .15 of .95; 0.8 of that is reached by the first two
    drawn = draw(z, [sampling], [0] * 1000, RNG.random(1000))
    assert set(drawn.tokens_R.tolist()) == {0, 1}
    for token, full, left in ((0, 0.5, 0.5 / 0.8), (1, 0.3, 0.3 / 0.8)):
        at = drawn.tokens_R == token
        assert np.allclose(drawn.logprobs_R[at], np.log(full), atol=1e-6)
        assert np.allclose(drawn.sampled_logprobs_R[at], np.log(left), atol=1e-6)
    assert kept(torch.tensor([0.2, 0.8]), Sampling(top_p=0.1)).tolist() == [0.0, 1.0]
