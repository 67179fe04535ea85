"""KV memory of the torch engine.

Long paths run beside short ones, in order and with pauses, and samples stay the same.
"""

from dataclasses import replace

import numpy as np
import pytest

from banyan.segment import Finish
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.scheduling.running import Running
from tests.rollout.conftest import ask, finish, forced, prompt, save_weights, tiny_llama

TOLERANCE = 1e-4
CHOICES = {
    "ahead": (8, 32, 256), "prefill_tokens": (8, 40, 4096), "share_from": (1, 40, 1024),
    "page_tokens": (4, 16), "patience": (2, 256), "waste": (0, 512),
}  # fmt: skip


def same_as_forced(model, requests, ended):
    for request in requests:
        own = ended[request.key]
        assert (
            np.abs(forced(model, request.prefix_P, own.tokens_T) - own.logprobs_T).max() < TOLERANCE
        ), request.key


def run_out(engine, most_steps=3000):
    """Step until no branch runs; return segments in order and the most KV tokens after a step."""
    ended, most = {}, 0
    for _ in range(most_steps):
        if not engine.busy:
            return ended, most
        ended |= {one.key: one for one in engine.step()}
        most = max(most, engine.stats().kv_tokens)
    raise AssertionError(f"not done after {most_steps} steps: {engine.stats()}")


@pytest.fixture
def pauses(monkeypatch):
    """Record the keys of paused branches."""
    found, inner = [], Running.pause

    def noted(self):
        request = inner(self)
        found.append(request.key)
        return request

    monkeypatch.setattr(Running, "pause", noted)
    return found


def test_beside_a_long_request_as_many_short_ones_run_as_fit(make_engine):
    engine = make_engine(kv_tokens=1024, max_branches=32)
    engine.submit(ask("long", prompt(20), max_new_tokens=480))
    for b in range(40):
        engine.submit(ask(b, prompt(5 + b % 3, b), b))
    engine.step()
    engine.step()
    assert engine.stats().running == 32 and engine.stats().kv_tokens <= 1024


@pytest.mark.parametrize(
    "limits", [{}, {"deterministic": True}, {"page_tokens": 4, "waste": 0}, {"share_from": 1}]
)
def test_rows_of_all_lengths_agree_with_plain_passes(make_engine, llama, limits):
    requests = [
        ask(n, prompt(n), n, max_new_tokens=12 + n % 7) for n in (3, 4, 15, 16, 17, 60, 130, 300)
    ]
    requests += [
        ask((n, b), prompt(n), 7 * n + b, max_new_tokens=9) for n in (17, 64) for b in range(3)
    ]
    same_as_forced(llama, requests, finish(make_engine(**limits), requests))


def test_what_does_not_fit_lets_a_few_go_first_and_then_all_wait_for_it(make_engine):
    engine = make_engine(kv_tokens=512, max_branches=8, patience=5)
    engine.submit(ask("runs", prompt(20), max_new_tokens=60))
    engine.step()
    engine.submit(ask("long", prompt(420), max_new_tokens=2))
    for b in range(20):
        engine.submit(ask(b, prompt(10, b), b))
    ended = list(run_out(engine)[0])
    assert len(ended) == 22
    first = ended[: ended.index("long")]
    assert len([key for key in first if key != "runs"]) == 5, (
        "as many as patience says, and no more"
    )


def test_a_request_behind_one_that_does_not_fit_begins_at_once(make_engine):
    engine = make_engine(kv_tokens=512, max_branches=8)
    engine.submit(ask("runs", prompt(20), max_new_tokens=60))
    engine.step()
    engine.submit(ask("long", prompt(420), max_new_tokens=2))
    engine.submit(ask("short", prompt(10), max_new_tokens=4))
    ended = [one.key for _ in range(5) for one in engine.step()]
    assert ended == ["short"]


def test_branches_that_are_paused_go_on_where_they_were(make_engine, llama, pauses):
    requests = [ask(b, prompt(30, b), b, max_new_tokens=90) for b in range(6)]
    free = finish(make_engine(), requests)
    assert not pauses
    engine = make_engine(kv_tokens=400, ahead=16, max_branches=6)
    for request in requests:
        engine.submit(request)
    ended, most = run_out(engine)
    assert pauses and 0 not in pauses and most <= 400
    assert [len(ended[b].tokens_T) for b in range(6)] == [90] * 6
    assert all(ended[b].tokens_T.tolist() == free[b].tokens_T.tolist() for b in range(6))
    assert engine.stats().sampled_tokens == 6 * 90
    same_as_forced(llama, requests, ended)


def test_a_branch_paused_among_its_forced_tokens_takes_the_rest_of_them(make_engine, llama, pauses):
    words = tuple(int(t) for t in prompt(70, 9))
    requests = [
        replace(ask(b, prompt(30, b), b, max_new_tokens=20), forced=words) for b in range(4)
    ]
    ended = finish(make_engine(kv_tokens=300, ahead=16, max_branches=4), requests)
    assert pauses
    for request in requests:
        assert (
            ended[request.key].tokens_T[:70].tolist() == list(words)
            and len(ended[request.key].tokens_T) == 90
        )
    same_as_forced(llama, requests, ended)


def paused_engine(make_engine, pauses, model=None):
    engine = make_engine(model=model, kv_tokens=400, ahead=16, max_branches=6)
    for b in range(6):
        engine.submit(ask(b, prompt(30, b), b, max_new_tokens=90))
    for _ in range(90):
        if pauses:
            break
        assert engine.step() == []
    return engine, pauses[0]


def test_an_abort_returns_what_a_paused_branch_has_sampled(make_engine, pauses):
    engine, key = paused_engine(make_engine, pauses)
    before = engine.stats()
    part = engine.abort(key)
    assert part is not None and part.finish is Finish.ABORTED and len(part.tokens_T) > 10
    assert engine.stats().running == before.running - 1 and engine.stats().waiting == before.waiting
    assert engine.abort(key) is None
    assert key not in finish(engine)


def test_new_weights_cut_paused_branches_too(make_engine, pauses, tmp_path):
    engine, key = paused_engine(make_engine, pauses, tiny_llama(0))
    cut = {one.key: one for one in engine.load(*save_weights(tmp_path, tiny_llama(1), 1))}
    assert len(cut) == 6 and len(cut[key].tokens_T) > 10 and not engine.busy
    assert all(one.finish is Finish.ABORTED and one.policy.digest == b"p0" for one in cut.values())


def test_while_nothing_is_admitted_what_was_paused_still_ends(make_engine, pauses):
    engine, _ = paused_engine(make_engine, pauses)
    engine.submit(ask("new", prompt(5), 1))
    engine.hold(True)
    ended = finish(engine)
    assert sorted(ended) == list(range(6)) and engine.stats().waiting == 1
    engine.hold(False)
    assert list(finish(engine)) == ["new"]


def test_a_long_prefix_that_is_computed_gives_way_to_who_began_first(
    make_engine, llama, monkeypatch
):
    given_up, unfill = [], TorchEngine._unfill
    monkeypatch.setattr(
        TorchEngine, "_unfill", lambda self, some: (given_up.extend(some), unfill(self, some))
    )
    engine = make_engine(kv_tokens=512, ahead=16, max_branches=4, prefill_tokens=4)
    first = ask("first", prompt(20), max_new_tokens=300)
    engine.submit(first)
    for _ in range(70):
        engine.step()
    second = ask(
        "second", prompt(370, 1), 2, max_new_tokens=4
    )  # 93 chunks, in which the first needs what is left
    engine.submit(second)
    ended, most = run_out(engine)
    assert given_up and most <= 512 and list(ended) == ["first", "second"]
    same_as_forced(llama, [first, second], ended)


def test_the_pool_shrinks_when_little_is_left_to_run(make_engine):
    engine = make_engine(kv_tokens=4096, max_branches=32)
    finish(engine, [ask(b, prompt(60, b), b, max_new_tokens=8) for b in range(32)])
    grown = engine._kv_budget.pages.tokens
    finish(engine, [ask("one", prompt(9), max_new_tokens=8)])
    assert grown >= 32 * 64 and engine._kv_budget.pages.tokens <= grown // 4


@pytest.mark.parametrize("seed", range(5))
def test_any_load_ends_within_the_bound_and_leaves_nothing_behind(make_engine, llama, pauses, seed):
    rng = np.random.default_rng(seed)
    limits = {name: int(rng.choice(of)) for name, of in CHOICES.items()}
    engine = make_engine(
        kv_tokens=int(rng.integers(250, 500)), max_branches=int(rng.integers(2, 9)), **limits
    )
    trunk, requests = prompt(110, 5), []
    for b in range(16):
        prefix = (
            trunk[: int(rng.integers(20, 110))]
            if rng.random() < 0.5
            else prompt(int(rng.integers(1, 120)), b)
        )
        requests.append(
            ask(b, prefix, b, keep=bool(b % 2), max_new_tokens=int(rng.integers(1, 90)))
        )
        engine.submit(requests[-1])
    ended, most = run_out(engine)
    assert sorted(ended) == list(range(16)) and most <= engine._limits.kv_tokens
    assert (
        engine._kv_budget.pinned == 0
        and engine._kv_budget.pages.free == engine._kv_budget.pages.count - 1
    )
    same_as_forced(llama, requests[::3], ended)


def test_an_engine_that_pauses_says_the_same_bits_again(make_engine, pauses):
    requests = [replace(ask(b, prompt(30, b), b, max_new_tokens=70), order=(b,)) for b in range(5)]
    limits = {"kv_tokens": 300, "ahead": 16, "max_branches": 5, "deterministic": True}
    one = finish(make_engine(**limits), requests)
    count = len(pauses)
    two = finish(make_engine(**limits), requests[::-1])
    assert count and pauses[:count] == pauses[count:]
    assert all(one[b].logprobs_T.tobytes() == two[b].logprobs_T.tobytes() for b in range(5))
