"""Forced tokens and signals of the torch engine, against plain passes of the same model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.segment import Finish
from banyan.signals import Wanted
from services.rollout.engines.torch_engine.top_tokens import semantics
from tests.rollout.conftest import VOCABULARY, ask, finish, forced, prompt, tiny_llama

TOLERANCE = 1e-4


def full(model, path):
    """Return untempered log-probs of each next token of a path [T, V]."""
    with torch.no_grad():
        logits = (
            model(input_ids=torch.tensor(path, dtype=torch.long)[None], use_cache=False)
            .logits[0]
            .float()
        )
    return torch.log_softmax(logits, -1)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_forced_tokens_come_first_with_the_policys_logprobs(make_engine, llama, count):
    tokens = tuple(int(t) for t in prompt(count, 5))
    requests = [
        replace(ask(b, prompt(12), b, temperature=0.7, max_new_tokens=5), forced=tokens)
        for b in range(4)
    ]
    engine = make_engine()
    ended = finish(engine, requests)
    for sampled in ended.values():
        assert tuple(sampled.tokens_T[:count]) == tokens and len(sampled.tokens_T) == count + 5
        expected = forced(llama, prompt(12), sampled.tokens_T, 0.7)
        assert np.abs(expected - sampled.logprobs_T).max() < TOLERANCE
        assert (sampled.sampled_logprobs_T[:count] == 0).all()
        assert (sampled.sampled_logprobs_T[count:] == sampled.logprobs_T[count:]).all()
        assert len(sampled.entropies_T) == count + 5
    stats = engine.stats()
    assert stats.sampled_tokens == 4 * 5 and stats.prefilled_tokens == 12 + 4 * count


def test_a_branch_draws_the_same_behind_a_forced_token_as_behind_the_same_token_of_its_prefix(
    make_engine,
):
    token = int(prompt(1, 9)[0])
    behind = finish(make_engine(), [ask(0, np.append(prompt(12), token).astype(np.int32), 3)])[0]
    put = finish(make_engine(), [replace(ask(0, prompt(12), 3), forced=(token,))])[0]
    assert put.tokens_T[1:].tolist() == behind.tokens_T.tolist(), (
        "the first sampled token has position 0 in both"
    )
    other = finish(make_engine(), [replace(ask(0, prompt(12), 4), forced=(token,))])[0]
    assert other.tokens_T.tolist() != put.tokens_T.tolist()


def test_forced_tokens_under_truncation_and_beside_free_branches(make_engine):
    free = [ask(("free", b), prompt(12), b, top_k=5) for b in range(3)]
    requests = [replace(ask(("put", b), prompt(12), b, top_k=5), forced=(7, 8)) for b in range(3)]
    together = finish(make_engine(), [*free, *requests])
    alone = finish(make_engine(), free)
    for key, sampled in alone.items():
        assert together[key].tokens_T.tolist() == sampled.tokens_T.tolist()
    for request in requests:
        sampled = together[request.key]
        assert (sampled.sampled_logprobs_T[:2] == 0).all()
        assert (sampled.sampled_logprobs_T[2:] > sampled.logprobs_T[2:]).all()


def test_what_ends_sampled_text_ends_nothing_among_forced_tokens(make_engine):
    engine = make_engine(eos=True)
    (eos,) = engine.tokenizer.eos
    stop = engine.tokenizer.decode(np.array([9], np.int32))
    forced_stop = finish(
        make_engine(),
        [replace(ask(0, prompt(9), 2, max_new_tokens=1, stop=(stop,)), forced=(9, 9))],
    )[0]
    assert forced_stop.tokens_T.tolist()[:2] == [9, 9] and len(forced_stop.tokens_T) == 3
    request = replace(ask(0, prompt(9), 2, max_new_tokens=4), forced=(eos, eos))
    ended = finish(engine, [request])[0]
    assert len(ended.tokens_T) > 2 and ended.tokens_T.tolist()[:2] == [eos, eos]


def test_an_abort_before_the_forced_tokens_are_through_returns_none(make_engine):
    for steps, tokens in ((0, 0), (1, 0), (2, 0), (3, 3), (5, 5)):
        engine = make_engine()
        engine.submit(
            replace(ask(0, prompt(9), max_new_tokens=9), forced=(5, 6, 7), signals=Wanted(2, 2))
        )
        for _ in range(steps):
            engine.step()
        partial = engine.abort(0)
        assert partial.finish is Finish.ABORTED and len(partial.tokens_T) == tokens == len(
            partial.logprobs_T
        )
        assert len(partial.signals.semantic_T) == tokens and not engine.busy


def test_forced_tokens_outside_the_vocabulary_are_refused(make_engine):
    with pytest.raises(InvalidInput, match="not all in the vocabulary of 300"):
        make_engine().submit(replace(ask(0, prompt(9)), forced=(VOCABULARY,)))


def test_the_likeliest_tokens_are_those_of_the_untempered_distribution(make_engine, llama):
    requests = [
        replace(
            ask(b, prompt(9 + b), b, temperature=0.5, top_k=3), signals=Wanted(top=top), forced=put
        )
        for b, (top, put) in enumerate([(5, ()), (20, (3, 4)), (0, ()), (1, ())] * 6)
    ]
    ended = finish(make_engine(), requests)
    for request in requests:
        sampled, top = ended[request.key], request.signals.top
        if not top:
            assert not sampled.signals
            continue
        path = np.concatenate((request.prefix_P, sampled.tokens_T))
        values, ids = full(llama, path)[len(request.prefix_P) - 1 : -1].topk(top)
        assert np.array_equal(sampled.signals.top_ids_T_K, ids.numpy())
        assert np.abs(sampled.signals.top_logprobs_T_K - values.numpy()).max() < 0.01  # half floats


def test_semantic_values_are_those_of_the_card(make_engine):
    model = tiny_llama(3)
    request = replace(ask(0, prompt(9), temperature=1.3), signals=Wanted(semantic=6))
    sampled = finish(make_engine(model=model), [request])[0]
    path = np.concatenate((request.prefix_P, sampled.tokens_T))
    values, ids = full(model, path)[len(request.prefix_P) - 1 : -1].topk(6)
    e = torch.nn.functional.normalize(model.get_input_embeddings().weight[ids], dim=-1)
    p = values.exp()
    pairs = (p[:, :, None] * p[:, None, :] * (e @ e.transpose(1, 2))).numpy()
    expected = [sum(m[i, j] for i in range(6) for j in range(6) if i != j) for m in pairs]
    assert np.abs(sampled.signals.semantic_T - expected).max() < 1e-3
    assert not sampled.signals.top_ids_T_K.size


@pytest.mark.parametrize(("cosine", "score"), [(1.0, -0.3466), (0.0, 0.0), (-1.0, 0.3466)])
def test_hand_example_of_card_30(cosine, score):
    p = torch.tensor([[0.5, 0.5]])
    e = torch.tensor(
        [[[3.0, 0.0], [2 * cosine, 2 * (1 - cosine**2) ** 0.5]]]
    )  # lengths must not matter
    f = float(semantics(p, e)[0, -1])
    entropy = float(np.log(2))
    assert f == pytest.approx(0.5 * cosine, abs=1e-6)
    assert -f * entropy == pytest.approx(score, abs=1e-4)


def test_a_long_prompt_does_not_stall_those_who_decode(make_engine, llama):
    engine = make_engine(prefill_tokens=16)
    early = [ask(("early", b), prompt(10), b, max_new_tokens=12) for b in range(3)]
    for request in early:
        engine.submit(request)
    engine.step()
    late = [ask(("late", b), prompt(100), b, max_new_tokens=4, keep=True) for b in range(3)]
    shares = ask("shares", np.concatenate((prompt(100)[:90], prompt(7))), 5, max_new_tokens=4)
    for request in (*late, shares):
        engine.submit(request)
    most, ended = 0, {}
    while engine.busy:
        before = engine.stats()
        for one in engine.step():
            ended[one.key] = one
        now = engine.stats()
        most = max(most, now.prefilled_tokens - before.prefilled_tokens)
        assert not before.running or now.sampled_tokens > before.sampled_tokens, (
            "a step without a token for who runs"
        )
    assert most <= 16 + 7
    for request in (*early, *late, shares):
        expected = forced(llama, request.prefix_P, ended[request.key].tokens_T)
        assert np.abs(expected - ended[request.key].logprobs_T).max() < TOLERANCE
    whole = finish(make_engine(), late)
    for request in late:
        assert whole[request.key].tokens_T.tolist() == ended[request.key].tokens_T.tolist()
    assert engine.stats().prefilled_tokens == 10 + 100 + 7


def test_a_prompt_being_prefilled_can_be_stopped_and_goes_on_under_new_weights(
    make_engine, tmp_path
):
    from tests.rollout.conftest import save_weights

    engine = make_engine(model=tiny_llama(0), prefill_tokens=16)
    requests = [ask(b, prompt(100), b) for b in range(3)]
    for request in requests:
        engine.submit(request)
    engine.step()
    engine.step()
    assert engine.busy and engine.stats().waiting == 3
    assert len(engine.abort(1).tokens_T) == 0
    policy, path = save_weights(tmp_path, tiny_llama(1), 1)
    assert engine.load(policy, path) == []
    ended = finish(engine)
    assert set(ended) == {0, 2}
    for request in (requests[0], requests[2]):
        expected = forced(tiny_llama(1), request.prefix_P, ended[request.key].tokens_T)
        assert np.abs(expected - ended[request.key].logprobs_T).max() < TOLERANCE
    engine.submit(ask("gone", prompt(90)))
    engine.step()
    assert len(engine.abort("gone").tokens_T) == 0 and not engine.busy
