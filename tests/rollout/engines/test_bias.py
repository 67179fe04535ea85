"""Logit bias: draws from log softmax((logits + bias) / T), log-probs without the bias."""

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.segment import Sampling
from services.rollout.engines.port import Request
from services.rollout.engines.scripted.distribution import Distribution
from services.rollout.engines.scripted.engine import build
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer
from services.rollout.engines.torch_engine.sampler import draw

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0]])


def drawn(sampling: Sampling, count: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    u = (np.arange(count) + 0.5) / count
    out = draw(LOGITS, [sampling], [0] * count, u)
    return out.tokens_R, out.logprobs_R, out.sampled_logprobs_R


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_a_bias_is_added_before_the_temperature(temperature):
    bias = ((1, 1.5), (3, -2.0))
    tokens, logprobs, sampled = drawn(Sampling(temperature, bias=bias), 4096)
    own = torch.log_softmax(LOGITS[0] / temperature, -1).numpy()
    biased = torch.log_softmax(
        (LOGITS[0] + torch.tensor([0, 1.5, 0, -2.0])) / temperature, -1
    ).numpy()
    assert np.allclose(logprobs, own[tokens], atol=1e-6) and np.allclose(
        sampled, biased[tokens], atol=1e-6
    )
    share = np.bincount(tokens, minlength=4) / 4096  # the numbers u are a grid: no chance in it
    assert np.abs(share - np.exp(biased)).max() < 1e-3 < np.abs(share - np.exp(own)).max()


def test_truncation_acts_on_what_the_bias_left():
    tokens, _, sampled = drawn(Sampling(1.0, top_k=2, bias=((0, -100.0), (3, 4.0))), 512)
    assert set(tokens.tolist()) == {1, 3}
    kept = torch.log_softmax(torch.tensor([1.0, 3.0]), -1).numpy()
    assert np.allclose(sampled, kept[(tokens == 3).astype(int)], atol=1e-6)


def test_greedy_takes_the_likeliest_with_the_bias():
    tokens, logprobs, _ = drawn(Sampling(0.0, bias=((2, 3.0),)))
    assert tokens.tolist() == [2] and logprobs[0] == pytest.approx(
        float(torch.log_softmax(LOGITS[0], -1)[2]), abs=1e-6
    )


def test_rows_without_a_bias_are_as_they_were_beside_one_that_has_it():
    samplings = [Sampling(1.0), Sampling(1.0, bias=((3, 5.0),)), Sampling(0.7)]
    u = np.array([0.3, 0.3, 0.3])
    together = draw(LOGITS.repeat(3, 1), samplings, [0, 1, 2], u)
    for r in (0, 2):
        alone = draw(LOGITS, [samplings[r]], [0], u[:1])
        assert (
            together.tokens_R[r] == alone.tokens_R[0]
            and together.logprobs_R[r] == alone.logprobs_R[0]
        )
        assert together.sampled_logprobs_R[r] == together.logprobs_R[r]
    assert together.tokens_R[1] == 3


def test_the_scripted_engine_says_the_same():
    p = torch.softmax(LOGITS[0].double(), -1).numpy()
    said = Distribution.of(p, Sampling(0.5, bias=((1, 1.5),)))
    expected = torch.log_softmax(
        (LOGITS[0].double() + torch.tensor([0, 1.5, 0, 0])) / 0.5, -1
    ).numpy()
    assert np.allclose(said.sampled_V, expected) and np.allclose(
        said.tempered_V, np.log(p**2 / (p**2).sum())
    )


def test_the_scripted_engine_never_draws_what_is_forbidden_and_refuses_what_it_has_not():
    engine = build({"chain": {"": {"a": 0.5, "b": 0.5}}}, PolicyVersion(0, 0, b""), 4)
    prefix = engine.tokenizer.encode_chat([{"role": "user", "content": "go"}])
    (a,) = {
        int(t)
        for t in range(CharacterTokenizer.size)
        if engine.tokenizer.decode(np.array([t], np.int32)) == "a"
    }
    engine.submit(Request(0, prefix, 1, Sampling(max_new_tokens=40, bias=((a, -100.0),))))
    ended = []
    while engine.busy:
        ended += engine.step()
    assert engine.tokenizer.decode(ended[0].tokens_T) == "b" * 40
    assert (
        np.allclose(ended[0].logprobs_T, np.log(0.5))
        and np.abs(ended[0].sampled_logprobs_T).max() < 1e-6
    )
    with pytest.raises(InvalidInput, match="logit bias of tokens that the alphabet"):
        engine.submit(Request(1, prefix, 1, Sampling(bias=((100_000, 1.0),))))
