"""The torch engine against teacher-forced passes of the model, with controls that must fail."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.recipe_loader.load import resolve
from banyan.segment import Finish
from services.rollout.engines import factory
from services.rollout.growth import return_reasons
from tests.faults.harness import tiny_model
from tests.rollout.conftest import ask, finish, forced, prompt, save_weights, tiny_llama
from tests.system.tiny import byte_tokenizer

TOLERANCE = 1e-4


def worst(model, ended, requests, temperature=None, shift=0):
    """Return the largest gap between the engine's log-probs and a teacher-forced pass."""
    gaps = []
    for request in requests:
        sampled = ended[request.key]
        t = request.sampling.temperature if temperature is None else temperature
        prefix = request.prefix_P[: len(request.prefix_P) - shift]
        gaps.append(np.abs(forced(model, prefix, sampled.tokens_T, t) - sampled.logprobs_T).max())
    return max(gaps)


@pytest.mark.parametrize(
    "limits", [{}, {"max_branches": 3}, {"deterministic": True}, {"prefill_tokens": 16}]
)
def test_logprobs_equal_a_teacher_forced_pass(make_engine, llama, limits):
    requests = [
        ask((n, b), prompt(n), 7 * n + b, temperature=t, max_new_tokens=m)
        for n, m, t in ((5, 9, 1.0), (17, 4, 0.6), (30, 12, 1.7))
        for b in range(4)
    ]
    ended = finish(make_engine(**limits), requests)
    assert worst(llama, ended, requests) < TOLERANCE


def test_the_comparison_can_fail(make_engine, llama):
    requests = [ask(b, prompt(20), b, temperature=0.6) for b in range(6)]
    ended = finish(make_engine(), requests)
    assert worst(llama, ended, requests) < TOLERANCE
    assert worst(llama, ended, requests, shift=1) > 0.1, "a position off by one must show"
    assert worst(llama, ended, requests, temperature=1.0) > 0.1, (
        "a temperature that is not applied must show"
    )
    assert worst(tiny_llama(1), ended, requests) > 0.1, "other weights must show"


def test_children_of_a_kept_segment_continue_its_cache(make_engine, llama):
    engine = make_engine()
    trunk = finish(engine, [ask("trunk", prompt(20), keep=True)])["trunk"]
    before = engine.stats()
    prefix = np.concatenate((prompt(20), trunk.tokens_T))
    fork = np.concatenate((prompt(20), trunk.tokens_T[:4]))  # inside the finished segment
    requests = [ask(("end", b), prefix, b) for b in range(3)] + [
        ask(("fork", b), fork, b) for b in range(3)
    ]
    ended = finish(engine, requests)
    assert worst(llama, ended, requests) < TOLERANCE
    assert (
        engine.stats().prefilled_tokens - before.prefilled_tokens == 2
    )  # the last token of each of the two prefixes
    assert sorted(e.cached_tokens for e in ended.values()) == [23, 24, 24, 27, 28, 28]


@pytest.mark.parametrize("forks_inside", [True, False])
def test_paths_inside_an_ended_answer_continue_its_cache(make_engine, llama, forks_inside):
    engine = make_engine()
    request = replace(ask("whole", prompt(20), max_new_tokens=9), forks_inside=forks_inside)
    whole = finish(engine, [request])["whole"]
    before = engine.stats()
    forks = [np.concatenate((prompt(20), whole.tokens_T[:n])) for n in (3, 7)]
    requests = [ask((n, b), fork, b) for n, fork in enumerate(forks) for b in range(2)]
    ended = finish(engine, requests)
    assert worst(llama, ended, requests) < TOLERANCE
    again = engine.stats().prefilled_tokens - before.prefilled_tokens
    assert again == (2 if forks_inside else 10)  # the last token of each, or all behind the prompt


def test_an_answer_that_the_model_ended_stays_for_paths_inside_it(make_engine, llama):
    engine = make_engine()
    free = finish(engine, [ask("free", prompt(20), max_new_tokens=9)])["free"]
    engine.tokenizer.eos = frozenset({int(free.tokens_T[6])})
    request = replace(ask("whole", prompt(20), max_new_tokens=9), forks_inside=True)
    whole = finish(engine, [request])["whole"]
    assert whole.finish is Finish.STOP and 3 < len(whole.tokens_T) < 9
    requests = [ask("inside", np.concatenate((prompt(20), whole.tokens_T[:-1])))]
    ended = finish(engine, requests)
    assert worst(llama, ended, requests) < TOLERANCE
    assert ended["inside"].cached_tokens == len(requests[0].prefix_P) - 1


@pytest.mark.parametrize("acts", [True, False])
def test_what_follows_an_action_continues_its_cache(make_engine, llama, acts):
    engine = make_engine()
    free = finish(engine, [ask("free", prompt(20), max_new_tokens=6)])["free"]
    stop = engine.tokenizer.decode(free.tokens_T[2:3])
    asked = replace(ask("action", prompt(20), max_new_tokens=6, stop=(stop,)), acts=acts)
    action = finish(engine, [asked])["action"]
    assert action.finish is Finish.STOP and len(action.tokens_T) <= 3
    path = np.concatenate((prompt(20), action.tokens_T, prompt(5, seed=1)))
    requests = [ask("behind", path)]
    ended = finish(engine, requests)
    assert worst(llama, ended, requests) < TOLERANCE
    kept = 20 + len(action.tokens_T) - 1  # the last token has none yet
    assert ended["behind"].cached_tokens == (kept if acts else 20)


def test_an_end_of_the_model_is_followed_by_nothing(make_engine):
    engine = make_engine()
    free = finish(engine, [ask("free", prompt(20), max_new_tokens=6)])["free"]
    engine.tokenizer.eos = frozenset({int(free.tokens_T[2])})
    asked = replace(ask("end", prompt(20), max_new_tokens=6, stop=("never",)), acts=True)
    end = finish(engine, [asked])["end"]
    assert end.finish is Finish.STOP
    path = np.concatenate((prompt(20), end.tokens_T, prompt(5, seed=1)))
    assert finish(engine, [ask("behind", path)])["behind"].cached_tokens == 20


def test_a_prompt_is_prefilled_once_for_all_its_branches(make_engine):
    engine = make_engine()
    lengths = (11, 12, 25, 31)
    ended = finish(engine, [ask((n, b), prompt(n), b) for n in lengths for b in range(8)])
    stats = engine.stats()
    assert stats.prefilled_tokens == sum(lengths)
    assert stats.cached_tokens == 7 * sum(lengths)
    assert sum(e.cached_tokens for e in ended.values()) == stats.cached_tokens
    assert stats.sampled_tokens == sum(len(e.tokens_T) for e in ended.values()) == 4 * 8 * 8
    assert stats.steps == 8


def test_greedy_equals_generate(make_engine, llama):
    requests = [ask(n, prompt(n), temperature=0.0, max_new_tokens=12) for n in (4, 9, 23)]
    ended = finish(make_engine(), requests)
    for request in requests:
        ids = torch.tensor(request.prefix_P, dtype=torch.long)[None]
        out = llama.generate(
            ids, do_sample=False, max_new_tokens=12, eos_token_id=-1, pad_token_id=0
        )
        assert ended[request.key].tokens_T.tolist() == out[0, len(request.prefix_P) :].tolist()
    assert worst(llama, ended, requests, temperature=1.0) < TOLERANCE


def test_branches_of_a_prompt_are_independent(make_engine):
    ended = finish(make_engine(), [ask(b, prompt(10), b) for b in range(64)])
    assert len({e.tokens_T.tobytes() for e in ended.values()}) > 48
    same = finish(make_engine(), [ask(b, prompt(10), 5) for b in range(4)])
    assert len({e.tokens_T.tobytes() for e in same.values()}) == 1


def test_a_draw_does_not_depend_on_batch_mates(make_engine):
    requests = [
        ask((n, b), prompt(n), 100 * n + b, max_new_tokens=4 + b)
        for n in (6, 13, 40)
        for b in range(8)
    ]
    together = finish(make_engine(), requests)
    alone = {r.key: finish(make_engine(), [r])[r.key] for r in requests}
    narrow = finish(make_engine(max_branches=5), list(reversed(requests)))
    for request in requests:
        tokens = together[request.key].tokens_T.tolist()
        assert (
            tokens == alone[request.key].tokens_T.tolist() == narrow[request.key].tokens_T.tolist()
        )


def test_deterministic_engines_agree_to_the_bit_whatever_the_order_of_submission(make_engine):
    from dataclasses import replace

    requests = [
        replace(ask((n, b), prompt(n), 100 * n + b, max_new_tokens=3 + 2 * b), order=(n, b))
        for n in (6, 13, 40)
        for b in range(7)
    ]
    one = finish(make_engine(deterministic=True, max_branches=16), requests)
    two = finish(make_engine(deterministic=True, max_branches=16), requests[::-1])
    for key, sampled in one.items():
        assert sampled.tokens_T.tobytes() == two[key].tokens_T.tobytes()
        assert sampled.logprobs_T.tobytes() == two[key].logprobs_T.tobytes()
        assert sampled.entropies_T.tobytes() == two[key].entropies_T.tobytes()


def test_after_forgetting_nothing_depends_on_what_was_before(make_engine):
    requests = [ask((n, b), prompt(n), 100 * n + b, keep=True) for n in (9, 21) for b in range(4)]
    fresh = finish(make_engine(deterministic=True), requests)
    used = make_engine(deterministic=True)
    finish(used, [ask(("before", b), prompt(21), b, keep=True) for b in range(3)])
    used.forget()
    again = finish(used, requests)
    assert all(again[k].logprobs_T.tobytes() == s.logprobs_T.tobytes() for k, s in fresh.items())
    assert [again[k].cached_tokens for k in again] == [fresh[k].cached_tokens for k in fresh]


def test_an_abort_returns_what_there_is(make_engine, llama):
    engine = make_engine(max_branches=2)
    requests = [ask(b, prompt(9), b, max_new_tokens=20) for b in range(3)]
    for request in requests:
        engine.submit(request)
    for _ in range(5):
        engine.step()
    partial = engine.abort(0)
    assert partial is not None and partial.finish is Finish.ABORTED and len(partial.tokens_T) == 5
    unstarted = engine.abort(2)
    assert unstarted is not None and len(unstarted.tokens_T) == 0
    assert engine.abort(0) is None and engine.abort("never") is None
    rest = finish(engine)
    assert list(rest) == [1]
    assert worst(llama, {0: partial, **rest}, requests[:2]) < TOLERANCE


def test_stop_tokens_and_strings_end_a_segment_and_stay_in_it(make_engine):
    free = finish(make_engine(), [ask(0, prompt(9), 3, max_new_tokens=30)])[0].tokens_T
    engine = make_engine()
    engine.tokenizer.eos = frozenset({int(free[6])})
    stopped = finish(engine, [ask(0, prompt(9), 3, max_new_tokens=30)])[0]
    cut = free.tolist().index(int(free[6])) + 1
    assert stopped.finish is Finish.STOP and stopped.tokens_T.tolist() == free[:cut].tolist()
    text = make_engine().tokenizer.decode(free[:3])
    by_text = finish(make_engine(), [ask(0, prompt(9), 3, max_new_tokens=30, stop=(text,))])[0]
    assert by_text.finish is Finish.STOP and by_text.tokens_T.tolist() == free[:3].tolist()
    full = finish(make_engine(), [ask(0, prompt(9), 3, max_new_tokens=5)])[0]
    assert full.finish is Finish.BOUNDARY and len(full.tokens_T) == 5


def test_three_hundred_segments_of_all_lengths_finish_in_little_memory(make_engine, llama):
    rng = np.random.default_rng(0)
    requests = [
        ask(
            i,
            prompt(int(rng.integers(1, 60)), i % 37),
            i,
            keep=bool(i % 3),
            max_new_tokens=int(rng.integers(1, 20)),
        )
        for i in range(300)
    ]
    engine = make_engine(kv_tokens=400, max_branches=16)
    for request in requests:
        engine.submit(request)
    most, ended = 0, {}
    while engine.busy:
        for sampled in engine.step():
            ended[sampled.key] = sampled
        most = max(most, engine.stats().kv_tokens)
    assert len(ended) == 300
    assert most <= 400
    assert (
        engine.stats().prefilled_tokens > 1000
    )  # evicted prefixes are prefilled again, and counted
    assert worst(llama, ended, requests) < TOLERANCE


def test_what_can_never_fit_is_refused_with_the_remedy(make_engine):
    with pytest.raises(InvalidInput, match=r"path of 108 tokens .*kv_tokens=100"):
        make_engine(kv_tokens=100).submit(ask(0, prompt(100)))


def test_no_cache_survives_a_change_of_weights(make_engine, tmp_path):
    old, new = tiny_llama(0), tiny_llama(1)
    engine = make_engine(model=old)
    finish(engine, [ask("trunk", prompt(20), keep=True)])
    running = [ask(b, prompt(20), b, max_new_tokens=30) for b in range(3)]
    for request in running:
        engine.submit(request)
    for _ in range(4):
        engine.step()
    engine.submit(ask("waiting", prompt(20), 9))
    policy, path = save_weights(tmp_path, new, 1)
    cut = {s.key: s for s in engine.load(policy, path)}
    assert set(cut) == {0, 1, 2}
    assert all(
        s.finish is Finish.ABORTED and s.policy.digest == b"p0" and len(s.tokens_T) == 4
        for s in cut.values()
    )
    assert worst(tiny_llama(0), cut, running) < TOLERANCE
    before = engine.stats().prefilled_tokens
    again = [ask(("again", b), np.concatenate((prompt(20), cut[b].tokens_T)), b) for b in range(3)]
    ended = finish(engine, again)
    assert worst(new, ended, again) < TOLERANCE
    assert worst(tiny_llama(0), ended, again) > 0.1
    assert all(s.policy == policy for s in ended.values())
    assert (
        engine.stats().prefilled_tokens - before == 20 + 3 * 4
    )  # prompt once, then each cut branch; refresh waste


def test_weights_of_another_model_change_nothing(make_engine, tmp_path):
    from services.chassis.weights import file

    engine = make_engine(model=tiny_llama(0))
    state = dict(tiny_llama(1).state_dict())
    state["model.norm.weight"] = torch.ones(7)
    manifest = file.write(tmp_path, "policy-1-1", state, 1, 1)
    with pytest.raises(InvalidInput, match=r"model.norm.weight .* \(7,\) instead of \(32,\)"):
        engine.load(PolicyVersion(1, 1, manifest.digest), manifest.manifest_path)
    request = ask(0, prompt(9))
    assert worst(tiny_llama(0), finish(engine, [request]), [request]) < TOLERANCE


def test_spot_checks_give_the_behaviour_logprobs(make_engine):
    engine = make_engine()
    sampled = finish(engine, [ask(0, prompt(9), temperature=0.7)])[0]
    path = np.concatenate((prompt(9), sampled.tokens_T))
    assert np.abs(engine.logprobs(path, 9, 0.7) - sampled.logprobs_T).max() < TOLERANCE
    with pytest.raises(InvalidInput, match="first=0"):
        engine.logprobs(path, 0, 1.0)


def test_a_path_beyond_the_models_context_is_refused_with_both_numbers(make_engine):
    engine = make_engine(context=64)
    engine.submit(ask("fits", prompt(56), max_new_tokens=8))
    with pytest.raises(InvalidInput, match=r"65 tokens .*context of 64") as refused:
        engine.submit(ask("long", prompt(57), max_new_tokens=8))
    assert return_reasons.invalid(refused.value).startswith("UNUSABLE: ")


def test_the_engine_of_a_recipe_knows_its_models_context(tmp_path):
    byte_tokenizer(tiny_model(tmp_path, vocab=257))
    recipe = resolve(
        {
            **torch_defaults(tmp_path),
            "resources": {"engine": "torch", "dtype": "float32", "threads": 1},
        }
    )
    with pytest.raises(InvalidInput, match="context of 512"):
        factory.maker(recipe, 1)().submit(ask("long", prompt(510), max_new_tokens=8))


def torch_defaults(folder):
    return {"name": "x", "model": str(folder), "task": {"name": "arithmetic"}}
