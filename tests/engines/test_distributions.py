"""The distributions that engines say that they sampled from, for all engines."""

import numpy as np
import pytest

from banyan.errors import InvalidInput
from banyan.signals import Wanted
from tests.engines.rig import (
    LARGE,
    TOLERANCE,
    VOCABULARY,
    ask,
    finish,
    gap,
    of,
    prompt,
    taught,
)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_truncated_sampling_says_both_distributions(rig, temperature):
    requests = [
        ask(b, prompt(40), b, temperature=temperature, top_k=5, top_p=0.9) for b in range(4)
    ]
    ended = finish(rig.engine, requests)
    for r in requests:
        one = ended[r.key]
        assert gap(rig.model(), one, r) < TOLERANCE
        table = taught(rig.model(), r.prefix_P, one.tokens_T, temperature)
        for t, token in enumerate(one.tokens_T):
            order = np.argsort(-table[t])[:5]
            mass = np.exp(table[t][order])
            keep = order[: 1 + int((mass.cumsum() < 0.9 * mass.sum()).sum())]
            assert token in keep
            expected = table[t][token] - np.log(np.exp(table[t][keep]).sum())
            assert abs(expected - one.sampled_logprobs_T[t]) < 10 * TOLERANCE


def test_a_logit_bias_says_both_distributions(rig):
    bias = ((5, 6.0), (9, -100.0), (40, 2.5))
    requests = [
        ask(b, prompt(40), b, temperature=t, bias=bias, max_new_tokens=24)
        for b, t in enumerate((1.0, 0.7, 1.6))
    ]
    if rig.name == "vllm":
        with pytest.raises(InvalidInput, match=r"logit bias .*engine: torch"):
            rig.engine.submit(requests[0])
        return
    ended = finish(rig.engine, requests)
    assert 5 in np.concatenate([one.tokens_T for one in ended.values()])
    for r in requests:
        one, t = ended[r.key], r.sampling.temperature
        assert gap(rig.model(), one, r) < TOLERANCE and 9 not in one.tokens_T
        table = taught(rig.model(), r.prefix_P, one.tokens_T, t)
        for token, added in bias:
            table[:, token] += added / t
        table -= np.log(np.exp(table).sum(1, keepdims=True))
        assert np.abs(of(table, one.tokens_T) - one.sampled_logprobs_T).max() < 10 * TOLERANCE
    with pytest.raises(InvalidInput, match=f"logit bias of token {VOCABULARY}"):
        rig.engine.submit(ask(0, prompt(9), bias=((VOCABULARY, 1.0),)))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_forced_tokens_come_first_with_the_policys_logprobs(rig, temperature):
    forced = {b: (7 + b, 30, 5)[: 1 + b % 3] for b in range(6)}
    requests = [
        ask(b, prompt(40), b, {"forced": forced[b]}, temperature=temperature, max_new_tokens=6)
        for b in range(6)
    ]
    ended = finish(rig.engine, requests)
    for r in requests:
        one, given = ended[r.key], len(r.forced)
        assert one.tokens_T[:given].tolist() == list(r.forced) and len(one.tokens_T) == given + 6
        assert gap(rig.model(), one, r) < TOLERANCE
        assert gap(rig.model(), one, r, temperature=2.0) > LARGE
        assert not one.sampled_logprobs_T[:given].any()
        assert np.allclose(one.sampled_logprobs_T[given:], one.logprobs_T[given:])


def test_likeliest_tokens_are_those_of_the_untempered_distribution(rig):
    forced = {"forced": (9, 60), "signals": Wanted(top=5)}
    requests = [
        ask(b, prompt(40), b, forced if b % 2 else {"signals": Wanted(top=5)}) for b in range(4)
    ]
    ended = finish(rig.engine, requests)
    for r in requests:
        one = ended[r.key]
        table = taught(rig.model(), r.prefix_P, one.tokens_T)
        order = np.argsort(-table, axis=1)[:, :5]
        assert one.signals.top_ids_T_K.tolist() == order.tolist()
        expected = np.take_along_axis(table, order, 1)
        assert np.abs(one.signals.top_logprobs_T_K - expected).max() < 5e-3  # half floats
