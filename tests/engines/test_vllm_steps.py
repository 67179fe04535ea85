"""The vllm engine while segments run: submission ahead, waits of steps and of aborts."""

import asyncio
import threading
import time

import pytest

from banyan.segment import Finish
from services.rollout.engines.vllm_engine import engine as vllm_engine
from tests.engines.rig import BASE, OTHER, TOLERANCE, ask, finish, gap, prompt

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_cut_waits_a_moment_for_scores_and_not_for_all(vllm, monkeypatch):
    """Truncated and at another temperature, each token's log-prob is a request."""
    requests = [
        ask(b, prompt(20), b, temperature=0.7, top_k=20, max_new_tokens=400) for b in range(8)
    ]
    for request in requests:
        vllm.engine.submit(request)
    done = [s for _ in range(150) for s in vllm.engine.step()]
    monkeypatch.setattr(vllm_engine, "_PARTIAL_S", 0.1)
    begun = time.monotonic()
    cut = {s.key: s for s in vllm.engine.load(*vllm.policy(OTHER))}
    assert time.monotonic() - begun < 5.0
    assert all(s.finish is Finish.ABORTED and len(s.tokens_T) < 400 for s in cut.values())
    assert (
        max((gap(vllm.model(BASE), s, requests[k]) for k, s in cut.items()), default=0.0)
        < TOLERANCE
    )
    waiting = vllm.engine.stats().waiting
    rest = finish(vllm.engine)  # what has no scores at all is sampled again
    assert (
        waiting == len([s for s in rest.values() if s.policy.step == OTHER])
        and len(done) + len(cut) + len(rest) == 8
    )


def test_a_cut_does_not_wait_for_scores_that_do_not_come(vllm, monkeypatch):
    """Truncated at temperature 1, a segment's log-probs are one request: all of them, or none."""

    async def late(*_):
        await asyncio.sleep(60)

    for b in range(4):
        vllm.engine.submit(ask(b, prompt(20), b, top_k=20, max_new_tokens=200))
    assert not [s for _ in range(20) for s in vllm.engine.step()]
    monkeypatch.setattr(vllm_engine, "_PARTIAL_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(vllm.engine._core, "read", late)
        begun = time.monotonic()
        assert not vllm.engine.load(*vllm.policy(OTHER))
        assert time.monotonic() - begun < 5.0
    assert vllm.engine.stats().waiting == 4
    assert {len(s.tokens_T) for s in finish(vllm.engine).values()} == {200}


def test_its_steps_are_counted_while_nothing_ends(vllm):
    """They show that it computes; tokens are counted when their segment ends."""
    before, deadline = vllm.engine.stats(), time.monotonic() + 20
    vllm.engine.submit(ask(0, prompt(20), max_new_tokens=400))
    while vllm.engine.stats().steps < before.steps + 20 and time.monotonic() < deadline:
        assert not vllm.engine.step()
    assert vllm.engine.stats().steps >= before.steps + 20
    assert vllm.engine.stats().sampled_tokens == before.sampled_tokens
    finish(vllm.engine)
    steps = vllm.engine.stats().steps
    assert not vllm.engine.step() and vllm.engine.stats().steps == steps


def test_what_lies_ready_in_vllm_comes_back_where_nothing_more_is_to_begin(vllm):
    engine, most = vllm.engine, vllm.engine._bounds.max_branches
    for b in range(2 * most + 3):
        engine.submit(ask(b, prompt(20), b, max_new_tokens=100))
    assert (
        not engine.step()
        and engine.stats().waiting == most + 3
        and len(engine._running) == 2 * most
    )
    engine.hold(True)
    assert len(engine._running) <= most and engine.stats().waiting >= most + 3
    first = {}
    while engine.busy:
        first |= {s.key: s for s in engine.step()}
    assert set(first) <= set(range(most)) and all(
        s.finish is Finish.BOUNDARY for s in first.values()
    )
    engine.hold(False)
    rest = finish(engine)
    assert all(len(s.tokens_T) == 100 for s in [*first.values(), *rest.values()])
    assert sorted([*first, *rest]) == list(range(2 * most + 3))


def test_a_step_that_waits_long_is_woken(vllm, monkeypatch):
    monkeypatch.setattr(vllm.engine, "turn_s", 60.0)
    vllm.engine.submit(ask(0, prompt(20), max_new_tokens=400))
    others = [threading.Thread(target=vllm.engine.wake) for _ in range(2)]
    others[0].start()
    others[0].join()
    assert not vllm.engine.step()  # woken before it waited: nothing had ended
    others[1].start()
    assert not vllm.engine.step()
    assert len(finish(vllm.engine)[0].tokens_T) == 400


def test_kv_tokens_are_those_of_what_runs(vllm):
    for b in range(4):
        vllm.engine.submit(ask(b, prompt(70), b, max_new_tokens=300))
    deadline = time.monotonic() + 20
    while vllm.engine.stats().kv_tokens < 5 * 32 and time.monotonic() < deadline:
        vllm.engine.step()
    assert (
        5 * 32 <= vllm.engine.stats().kv_tokens <= 4 * 12 * 32
    )  # two blocks that all share, and one or more of each
    for b in range(4):
        vllm.engine.abort(b)
    assert vllm.engine.stats().kv_tokens == 0
