"""Decode passes at fixed shapes and places sample what plain passes do, though unrecorded here."""

from collections.abc import Callable

import numpy as np
import pytest

from services.rollout.engines.torch_engine.cuda import graphs
from services.rollout.engines.torch_engine.cuda.graphs import DecodeGraphs, Outputs, Recorder
from tests.rollout.conftest import ask, finish, forced, prompt


class Again(Recorder):
    """A recorder whose repetitions are computed anew; it counts what was recorded."""

    made = recorded = 0

    def __init__(self) -> None:
        Again.made += 1

    def record(self, run: Callable[[], Outputs]) -> Callable[[], Outputs]:
        Again.recorded += 1
        return run


class Broken(Recorder):
    """A recorder that fails."""

    def record(self, run: Callable[[], Outputs]) -> Callable[[], Outputs]:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture(autouse=True)
def counts():
    Again.made = Again.recorded = 0


def graphed(engine, recorder=Again):
    forward = engine._forward
    forward.graphs = DecodeGraphs(forward._graphed, recorder)
    return engine


def requests():
    return [
        ask((n, b), prompt(n), 100 * n + b, temperature=t, max_new_tokens=m + 3 * b)
        for n, m, t in ((5, 9, 1.0), (40, 30, 0.6), (130, 7, 0.0))
        for b in range(4)
    ]


@pytest.mark.parametrize("limits", [{}, {"max_branches": 3}, {"kv_tokens": 700, "ahead": 8}])
def test_graphs_sample_what_plain_passes_do(make_engine, llama, limits):
    plain = finish(make_engine(**limits), requests())
    ended = finish(graphed(make_engine(**limits)), requests())
    assert Again.recorded
    for request in requests():
        sampled = ended[request.key]
        assert sampled.tokens_T.tolist() == plain[request.key].tokens_T.tolist()
        np.testing.assert_allclose(sampled.logprobs_T, plain[request.key].logprobs_T, atol=1e-4)
        expected = forced(llama, request.prefix_P, sampled.tokens_T, request.sampling.temperature)
        assert np.abs(expected - sampled.logprobs_T).max() < 1e-4


def test_shapes_are_few(make_engine):
    engine = graphed(make_engine())
    finish(engine, requests())
    assert Again.recorded < engine.stats().steps / 4
    recorded = Again.recorded
    finish(engine, requests())
    assert Again.recorded == recorded or Again.made > 1


def test_graphs_end_with_their_pool(make_engine):
    engine = graphed(make_engine(share_from=10**9))
    finish(engine, [ask(b, prompt(9), b) for b in range(2)])
    made = Again.made
    finish(engine, [ask(b, prompt(400), b) for b in range(8)])
    assert Again.made > made, "the pool has grown"


def test_without_a_recording_passes_are_plain(make_engine, caplog):
    plain = finish(make_engine(), requests())
    ended = finish(graphed(make_engine(), Broken), requests())
    assert all(ended[k].tokens_T.tolist() == s.tokens_T.tolist() for k, s in plain.items())
    assert caplog.text.count("decode passes are no graphs: operation not permitted") == 1


@pytest.mark.parametrize("limits", [{"deterministic": True}, {"share_from": 1}])
def test_fixed_shapes_and_shared_trunks_are_no_graphs(make_engine, limits):
    finish(graphed(make_engine(**limits)), [ask(b, prompt(60), b) for b in range(6)])
    assert not Again.recorded


def test_a_pass_too_wide_is_none(make_engine, monkeypatch):
    monkeypatch.setattr(graphs, "_TOKENS", 128)
    finish(graphed(make_engine()), [ask(b, prompt(60), b) for b in range(6)])
    assert not Again.recorded


def test_rounded():
    assert [graphs.rounded(n, 8) for n in (1, 8, 9, 64, 65, 500)] == [8, 8, 16, 64, 80, 512]
    assert all(n <= graphs.rounded(n, 8) <= max(n + 7, 1.25 * n) for n in range(1, 3000))
    assert len({graphs.rounded(n, 8) for n in range(1, 1025)}) == 24
