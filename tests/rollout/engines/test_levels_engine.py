"""Branches that share a trunk's KV: the same numbers as with a copy each, in less memory."""

import numpy as np
import pytest
import torch

from services.rollout.engines.torch_engine import cascade_attention
from services.rollout.engines.torch_engine.attention_scores import Scores
from services.rollout.engines.torch_engine.kv.prefix_cache import KvBlock, Match
from services.rollout.engines.torch_engine.paged_attention import OwnKv
from tests.rollout.conftest import ask, finish, forced, prompt, save_weights, tiny_llama

TOLERANCE = 1e-4


def tree(engine, rng, depth=3, width=3, first=24, keep=9):
    """Grow a tree of shared trunks, some forked inside a segment; return requests and segments."""
    requests, ended = {}, {}
    heads = [prompt(first)]
    for level in range(depth):
        some = {}
        for h, prefix in enumerate(heads):
            for b in range(width):
                request = ask(
                    (level, h, b),
                    prefix,
                    100 * level + 10 * h + b,
                    keep=True,
                    max_new_tokens=keep - b % 3,
                )
                some[request.key] = request
        done = finish(engine, some.values())
        requests |= some
        ended |= done
        paths = [np.concatenate((some[k].prefix_P, done[k].tokens_T)) for k in some]
        heads = [p[: len(p) - int(rng.integers(0, 5))] for p in paths][:: width - 1]
    return requests, ended


@pytest.mark.parametrize("share_from", [1, 10**9])
def test_logprobs_of_a_tree_are_those_of_plain_passes(make_engine, llama, share_from):
    requests, ended = tree(make_engine(share_from=share_from), np.random.default_rng(1))
    gaps = [
        np.abs(forced(llama, r.prefix_P, ended[k].tokens_T) - ended[k].logprobs_T).max()
        for k, r in requests.items()
    ]
    assert max(gaps) < TOLERANCE and len(gaps) == 3 + 6 + 9


def test_sharing_changes_no_token_and_no_count(make_engine):
    one, two = make_engine(share_from=1), make_engine(share_from=10**9)
    _, shared = tree(one, np.random.default_rng(2))
    _, copied = tree(two, np.random.default_rng(2))
    for key, sampled in shared.items():
        assert sampled.tokens_T.tolist() == copied[key].tokens_T.tolist()
        assert sampled.cached_tokens == copied[key].cached_tokens
    assert one.stats().prefilled_tokens == two.stats().prefilled_tokens


def test_a_shared_prompt_is_held_once(make_engine):
    requests = [ask(b, prompt(200), b, max_new_tokens=8) for b in range(16)]
    most = {}
    for share_from in (1, 10**9):
        engine = make_engine(share_from=share_from)
        for request in requests:
            engine.submit(request)
        engine.step()  # first tokens come from the prompt's pass and have no KV yet
        engine.step()
        most[share_from] = engine.stats().kv_tokens
    assert most[10**9] >= 16 * 208
    assert 200 + 16 * 16 <= most[1] <= 200 + 32 * 16  # a page each


def test_branches_that_share_run_together_where_copies_would_not_fit(make_engine):
    engine = make_engine(kv_tokens=800, share_from=1)
    for b in range(16):
        engine.submit(ask(b, prompt(200), b, max_new_tokens=8))
    engine.step()
    assert engine.stats().running == 16 and engine.stats().kv_tokens <= 800
    assert len(finish(engine)) == 16


def test_mixed_loads_finish_within_the_bound_and_nothing_stays_pinned(make_engine, llama):
    rng = np.random.default_rng(0)
    requests = [
        ask(
            i,
            prompt(int(rng.integers(1, 60)), i % 7),
            i,
            keep=bool(i % 3),
            max_new_tokens=int(rng.integers(1, 20)),
        )
        for i in range(100)
    ]
    requests += [
        ask((i, b), prompt(50, i), 7 * i + b, keep=True, max_new_tokens=1 + b)
        for i in range(20)
        for b in range(5)
    ]
    engine = make_engine(kv_tokens=500, max_branches=16, share_from=30)
    for request in requests:
        engine.submit(request)
    most, ended = 0, {}
    for steps in range(10_000):
        if not engine.busy:
            break
        if steps == 5:
            ended[(0, 4)] = engine.abort((0, 4))
        ended |= {one.key: one for one in engine.step()}
        most = max(most, engine.stats().kv_tokens)
    assert len(ended) == 200 and most <= 500
    for request in requests:
        if len(ended[request.key].tokens_T):
            gap = np.abs(
                forced(llama, request.prefix_P, ended[request.key].tokens_T)
                - ended[request.key].logprobs_T
            ).max()
            assert gap < TOLERANCE
    assert engine._kv_budget.pinned == 0


def test_a_shared_trunk_does_not_outlive_its_policy(make_engine, tmp_path):
    engine = make_engine(model=tiny_llama(0), share_from=1)
    for b in range(4):
        engine.submit(ask(b, prompt(40), b, max_new_tokens=20))
    engine.step()
    engine.step()
    policy, path = save_weights(tmp_path, tiny_llama(1), 1)
    assert len(engine.load(policy, path)) == 4
    ended = finish(engine, [ask(b, prompt(40), b) for b in range(4)])
    for b in range(4):
        assert (
            np.abs(forced(tiny_llama(1), prompt(40), ended[b].tokens_T) - ended[b].logprobs_T).max()
            < TOLERANCE
        )


@pytest.mark.parametrize("cap", [None, 0.5])
def test_parts_of_a_softmax_make_the_whole(monkeypatch, cap):
    torch.manual_seed(0)
    kv = [(torch.randn(1, 2, n, 8), torch.randn(1, 2, n, 8)) for n in (5, 4)]
    pieces = [
        KvBlock(np.zeros(k.shape[2], np.int32), k, v, at, None)
        for (k, v), at in zip(kv, (0, 5), strict=True)
    ]
    trunks = [
        Match(((pieces[0], 5), (pieces[1], 9)), 9),
        None,
        Match(((pieces[0], 3),), 3),
        Match(((pieces[0], 5),), 5),
    ]
    q, k, v = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 6, 8), torch.randn(4, 2, 6, 8)
    seen = torch.arange(6) <= torch.tensor([0, 5, 2, 3])[:, None]
    mask = seen[:, None, None]
    over = cascade_attention.levels(trunks, q.device)
    whole, sums = [], []
    for r, trunk in enumerate(trunks):
        parts = trunk.parts if trunk else ()
        keys = torch.cat([*(p.keys[0, :, : s - p.start] for p, s in parts), k[r][:, seen[r]]], 1)
        values = torch.cat(
            [*(p.values[0, :, : s - p.start] for p, s in parts), v[r][:, seen[r]]], 1
        )
        scores = q[r] @ keys.transpose(1, 2) * 0.3
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        whole.append(torch.softmax(scores, -1) @ values)
        sums.append(scores.logsumexp(-1))

    def same(over):
        got, lse = cascade_attention.attend(
            q, [OwnKv(slice(None), k, v, mask)], Scores(0.3, cap), over, 0
        )
        return torch.allclose(got, torch.stack(whole), atol=1e-5) and torch.allclose(
            lse, torch.stack(sums), atol=1e-5
        )

    assert same(over)
    one_less, _ = cascade_attention.attend(
        q, [OwnKv(slice(None), k, v, mask)], Scores(0.3, cap), over[:1], 0
    )
    assert not torch.allclose(one_less, torch.stack(whole), atol=1e-2), (
        "a level that is left out must show"
    )
    monkeypatch.setattr(cascade_attention, "_fused", lambda query, key, value: False)  # as on a GPU
    assert same(over)
