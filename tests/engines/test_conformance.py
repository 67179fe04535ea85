"""The suite for all engines, with controls that must fail.

It tests the assumptions of grower and learner.
"""

from collections import Counter

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.segment import Finish
from tests.engines.rig import (
    BASE,
    LARGE,
    OTHER,
    TOLERANCE,
    VOCABULARY,
    ask,
    finish,
    gap,
    prompt,
    taught,
)


def some(temperatures=(1.0, 0.6, 1.7, 0.0)):
    """Return requests of several lengths and temperatures, four branches of each prompt."""
    return [
        ask(
            (n, b),
            prompt(n),
            7 * n + b,
            temperature=temperatures[k % len(temperatures)],
            max_new_tokens=m,
        )
        for k, (n, m) in enumerate(((5, 9), (40, 4), (33, 24), (70, 12)))
        for b in range(4)
    ]


def test_logprobs_equal_a_teacher_forced_pass(rig):
    requests = some()
    ended = finish(rig.engine, requests)
    assert max(gap(rig.model(), ended[r.key], r) for r in requests) < TOLERANCE
    assert all(len(ended[r.key].tokens_T) == r.sampling.max_new_tokens for r in requests)


def test_the_comparison_can_fail(rig):
    requests = [ask(b, prompt(40), b, temperature=0.6) for b in range(6)]
    ended = finish(rig.engine, requests)
    dropped = np.delete(prompt(40), 20)
    faults = {
        "nothing": {},
        "a position off by one": {"prefix": prompt(40)[1:]},
        "a KV token dropped": {"prefix": dropped},
        "a temperature that is not applied": {"temperature": 1.0},
    }
    found = {
        name: max(gap(rig.model(), ended[r.key], r, **change) for r in requests)
        for name, change in faults.items()
    }
    found["the previous policy's weights"] = max(
        gap(rig.model(OTHER), ended[r.key], r) for r in requests
    )
    assert found.pop("nothing") < TOLERANCE
    assert all(value > LARGE for value in found.values()), found


def test_greedy_equals_generate(rig):
    requests = [ask(n, prompt(n), temperature=0.0, max_new_tokens=12) for n in (4, 37, 64)]
    ended = finish(rig.engine, requests)
    for r in requests:
        ids = torch.tensor(r.prefix_P, dtype=torch.long)[None]
        out = rig.model().generate(
            ids, do_sample=False, max_new_tokens=12, eos_token_id=-1, pad_token_id=0
        )
        assert ended[r.key].tokens_T.tolist() == out[0, len(r.prefix_P) :].tolist()


def test_a_branch_is_an_exact_token_prefix(rig):
    keep = {"keep": True}
    trunk = finish(rig.engine, [ask("trunk", prompt(60), more=keep, max_new_tokens=40)])[
        "trunk"
    ].tokens_T
    forks = (0, 1, 17, 40)
    requests = [
        ask((f, b), np.concatenate((prompt(60), trunk[:f])), 10 * f + b)
        for f in forks
        for b in range(3)
    ]
    ended = finish(rig.engine, requests)
    assert max(gap(rig.model(), ended[r.key], r) for r in requests) < TOLERANCE
    for r in requests:  # the last sampled token's own KV was never computed
        assert ended[r.key].cached_tokens >= rig.cached(99, len(r.prefix_P)), r.key


def test_branches_of_a_trunk_are_independent(any_rig):
    requests = [ask(b, prompt(40), 100 + b, max_new_tokens=12) for b in range(16)]
    together = finish(any_rig.engine, requests)
    assert len({e.tokens_T.tobytes() for e in together.values()}) > 12
    any_rig.engine.forget()
    for r in requests:
        any_rig.engine.submit(r)
    rest = {s.key: s for s in any_rig.engine.step()}
    for b in range(0, 16, 2):
        any_rig.engine.abort(b)
    rest |= finish(any_rig.engine)
    for b in range(1, 16, 2):
        assert rest[b].tokens_T.tolist() == together[b].tokens_T.tolist(), b


def test_seeds_reproduce(any_rig):
    first = finish(any_rig.engine, [ask(0, prompt(33), 77, max_new_tokens=16)])[0]
    other = finish(any_rig.engine, [ask(0, prompt(33), 78, max_new_tokens=16)])[0]
    any_rig.engine.forget()
    again = finish(any_rig.engine, [ask(0, prompt(33), 77, max_new_tokens=16)])[0]
    assert again.tokens_T.tolist() == first.tokens_T.tolist() != other.tokens_T.tolist()


def test_draws_follow_the_distribution_at_full_concurrency(rig):
    count, t = 1024, 1.3
    ended = finish(
        rig.engine,
        [ask(i, prompt(20), 5000 + i, temperature=t, max_new_tokens=1) for i in range(count)],
    )
    p_V = np.exp(taught(rig.model(), prompt(20), np.zeros(1, np.int32), t)[0].astype(np.float64))
    drawn = np.bincount([int(e.tokens_T[0]) for e in ended.values()], minlength=VOCABULARY)
    likely = np.argsort(-p_V)[:20]
    expected = np.append(p_V[likely], 1 - p_V[likely].sum()) * count
    seen = np.append(drawn[likely], count - drawn[likely].sum())
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    assert chi_square < 45.3  # 20 degrees of freedom, one in a thousand
    untempered = np.exp(
        taught(rig.model(), prompt(20), np.zeros(1, np.int32), 1.0)[0].astype(np.float64)
    )
    wrong = np.append(untempered[likely], 1 - untempered[likely].sum()) * count
    assert float(((seen - wrong) ** 2 / wrong).sum()) > 45.3, (
        "a temperature that is not applied must show"
    )


def test_an_abort_returns_what_there_is(rig):
    requests = [ask(b, prompt(40), b, max_new_tokens=300) for b in range(3)]
    for r in requests:
        rig.engine.submit(r)
    until(rig.engine, 3)
    partial = rig.engine.abort(0)
    assert (
        partial is not None and partial.finish is Finish.ABORTED and 0 < len(partial.tokens_T) < 300
    )
    assert rig.engine.abort(0) is None and rig.engine.abort("never") is None
    assert gap(rig.model(), partial, requests[0]) < TOLERANCE
    rest = finish(rig.engine)
    assert set(rest) == {1, 2} and all(len(e.tokens_T) == 300 for e in rest.values())
    whole = finish(rig.engine, requests[:1])[0]
    assert whole.tokens_T[: len(partial.tokens_T)].tolist() == partial.tokens_T.tolist()
    rig.engine.submit(requests[0])
    unstarted = rig.engine.abort(0)
    assert unstarted is not None and len(unstarted.tokens_T) == 0 and not rig.engine.busy


def until(engine, branches, tokens=2):
    """Step until so many branches run and surely have tokens."""
    for _ in range(tokens + 8):
        assert not engine.step()
    assert engine.stats().running == branches


def test_cached_tokens_are_reported_and_right(rig):
    before, lengths = rig.engine.stats(), (5, 33, 70, 100)
    ended = finish(rig.engine, [ask((n, b), prompt(n), b) for n in lengths for b in range(8)])
    after = rig.engine.stats()
    cached = {n: sorted(ended[n, b].cached_tokens for b in range(8)) for n in lengths}
    for n in lengths:  # one of the siblings computes the prompt, the others share it
        most = n if rig.shared == 1 else rig.cached(n, n)
        assert cached[n] == [0, *[most] * 7]
    assert after.cached_tokens - before.cached_tokens == sum(map(sum, cached.values()))
    assert after.prefilled_tokens - before.prefilled_tokens == 8 * sum(lengths) - sum(
        map(sum, cached.values())
    )
    assert after.sampled_tokens - before.sampled_tokens == 32 * 8


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_tiny_segments_of_mixed_lengths_finish(any_rig, count):
    rng = np.random.default_rng(0)
    requests = [
        ask(
            i,
            prompt(int(rng.integers(1, 90)), i % 37),
            i,
            {"keep": bool(i % 3)},
            max_new_tokens=int(rng.integers(1, 20)),
        )
        for i in range(count)
    ]
    ended = finish(any_rig.engine, requests)
    assert len(ended) == count and Counter(e.finish for e in ended.values())[Finish.ABORTED] == 0
    if any_rig.name != "scripted":
        assert max(gap(any_rig.model(), ended[r.key], r) for r in requests[:60]) < TOLERANCE


def test_no_kv_of_an_old_policy_is_used(rig):
    finish(rig.engine, [ask("trunk", prompt(100), more={"keep": True})])
    running = [ask(b, prompt(100), b, max_new_tokens=300) for b in range(3)]
    for r in running:
        rig.engine.submit(r)
    until(rig.engine, 3)
    old = rig.policy(BASE)[0].digest
    policy, path = rig.policy(OTHER)
    cut = {s.key: s for s in rig.engine.load(policy, path)}
    assert set(cut) == {0, 1, 2}
    assert all(
        s.finish is Finish.ABORTED and s.policy.digest == old and len(s.tokens_T)
        for s in cut.values()
    )
    assert max(gap(rig.model(BASE), cut[r.key], r) for r in running) < TOLERANCE
    requests = [ask(("same", b), prompt(100), b) for b in range(3)]
    requests += [
        ask(("on", b), np.concatenate((prompt(100), cut[b].tokens_T)), b) for b in range(3)
    ]
    ended = finish(rig.engine, requests)
    assert max(gap(rig.model(OTHER), ended[r.key], r) for r in requests) < TOLERANCE
    assert max(gap(rig.model(BASE), ended[r.key], r) for r in requests) > LARGE
    assert all(s.policy == policy for s in ended.values())


def test_what_waits_goes_on_waiting_when_a_policy_is_loaded(rig):
    requests = [ask(b, prompt(10), b, max_new_tokens=200) for b in range(40)]
    for r in requests:
        rig.engine.submit(r)
    until(rig.engine, 32)
    cut = rig.engine.load(*rig.policy(OTHER))
    assert rig.engine.stats().waiting == 40 - len(cut) and len(cut) == 32
    rest = finish(rig.engine)
    assert len(rest) == 8 and {s.policy.step for s in rest.values()} == {OTHER}


def test_the_same_weights_under_a_new_number_cut_nothing(rig):
    policy, path = rig.policy(BASE)
    rig.engine.submit(ask(0, prompt(10), max_new_tokens=60))
    until(rig.engine, 1)
    renumbered = type(policy)(policy.epoch, 9, policy.digest)
    assert rig.engine.load(renumbered, path) == []
    assert len(finish(rig.engine)[0].tokens_T) == 60


def test_stop_tokens_and_strings_end_a_segment_and_stay_in_it(rig):
    free = finish(rig.engine, [ask(0, prompt(9), 3, max_new_tokens=30)])[0].tokens_T
    at = next(t for t in range(4, 30) if free[t] not in free[:t])
    rig.engine.tokenizer.eos = frozenset({int(free[at])})
    stopped = finish(rig.engine, [ask(0, prompt(9), 3, max_new_tokens=30)])[0]
    assert stopped.finish is Finish.STOP and stopped.tokens_T.tolist() == free[: at + 1].tolist()
    rig.engine.tokenizer.eos = frozenset()
    texts = [rig.engine.tokenizer.decode(free[t : t + 1]) for t in range(30)]
    word = next(t for t in range(2, 30) if texts[t].isalnum() and texts[t] not in texts[:t])
    by_text = finish(rig.engine, [ask(0, prompt(9), 3, max_new_tokens=30, stop=(texts[word],))])[0]
    assert by_text.finish is Finish.STOP and by_text.tokens_T.tolist() == free[: word + 1].tolist()


def test_spot_checks_give_the_behaviour_logprobs(rig):
    for t in (1.0, 0.7):
        request = ask(0, prompt(40), temperature=t)
        sampled = finish(rig.engine, [request])[0]
        path = np.concatenate((prompt(40), sampled.tokens_T))
        assert np.abs(rig.engine.logprobs(path, 40, t) - sampled.logprobs_T).max() < TOLERANCE
    with pytest.raises(InvalidInput, match="first=0"):
        rig.engine.logprobs(path, 0, 1.0)


def test_what_can_never_run_is_refused_with_the_remedy(rig):
    with pytest.raises(InvalidInput, match=r"516 tokens .*context of 512"):
        rig.engine.submit(ask(0, prompt(508)))
    with pytest.raises(InvalidInput, match="at least one token"):
        rig.engine.submit(ask(0, prompt(0)))
    assert not rig.engine.busy
