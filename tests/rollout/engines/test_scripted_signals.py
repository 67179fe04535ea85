"""The scripted engine's forced tokens, signals, latency model and toy models."""

import math
from dataclasses import replace

import numpy as np
import pytest

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.segment import Finish
from banyan.signals import Wanted
from services.rollout.engines.scripted import toy_models
from services.rollout.engines.scripted.engine import build
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer
from tests.rollout.conftest import ask, finish

P0 = PolicyVersion(1, 0, b"p")
LETTERS = CharacterTokenizer()
CHAIN = {"": {"a": 0.5, "b": 0.3, "c": 0.2}}


def path(text):
    return LETTERS.encode(text)


GO = path("go\n")


def test_forced_tokens_come_first_and_take_no_draw():
    put = tuple(LETTERS.encode("cb").tolist())
    free = finish(build({"chain": CHAIN}, P0, 4), [ask(0, GO, 5, max_new_tokens=6)])[0]
    request = replace(ask(0, GO, 5, max_new_tokens=6, temperature=0.5), forced=put)
    engine = build({"chain": CHAIN}, P0, 4)
    forced = finish(engine, [request])[0]
    assert LETTERS.decode(forced.tokens_T).startswith("cb") and len(forced.tokens_T) == 8
    assert np.allclose(forced.logprobs_T[:2], np.log([0.04 / 0.38, 0.09 / 0.38]))
    assert (forced.sampled_logprobs_T[:2] == 0).all()
    assert (forced.sampled_logprobs_T[2:] == forced.logprobs_T[2:]).all()
    assert engine.stats().sampled_tokens == 6
    same = finish(
        build({"chain": CHAIN}, P0, 4), [replace(ask(0, GO, 5, max_new_tokens=6), forced=put)]
    )[0]
    assert same.tokens_T[2:].tolist() == free.tokens_T.tolist(), (
        "position 0 is the first sampled token's"
    )


def test_a_forced_end_ends_nothing_and_what_cannot_be_has_a_finite_logprob():
    request = replace(ask(0, GO, max_new_tokens=3), forced=(0, *LETTERS.encode("z").tolist()))
    ended = finish(build({"chain": CHAIN}, P0, 4), [request])[0]
    assert len(ended.tokens_T) == 5 and ended.finish is Finish.BOUNDARY
    assert np.isfinite(ended.logprobs_T).all() and ended.logprobs_T[1] < -1000
    with pytest.raises(InvalidInput, match="not all in the alphabet"):
        build({}, P0, 4).submit(replace(ask(0, GO), forced=(LETTERS.size,)))


def test_an_abort_before_the_forced_tokens_are_through_returns_none():
    engine = build({"chain": CHAIN}, P0, 4)
    engine.submit(replace(ask(0, GO), forced=(1, 2, 3)))
    engine.step()
    assert len(engine.abort(0).tokens_T) == 0


def test_signals_are_those_of_the_known_distribution():
    request = replace(
        ask(0, GO, temperature=0.3, top_k=1, max_new_tokens=4), signals=Wanted(top=5, semantic=3)
    )
    said = finish(build({"chain": CHAIN}, P0, 4), [request])[0].signals
    assert [LETTERS.decode(row[:3]) for row in said.top_ids_T_K] == ["abc"] * 4
    assert np.allclose(said.top_logprobs_T_K[:, :3], np.log([0.5, 0.3, 0.2]), atol=1e-3)
    assert (
        np.isfinite(said.top_logprobs_T_K).all() and (said.top_logprobs_T_K[:, 3:] < -60_000).all()
    )
    assert np.allclose(said.semantic_T, 0.0), "letters mean different things"


@pytest.mark.parametrize(("pair", "score"), [("aA", -0.3466), ("ab", 0.0), ("+-", 0.3466)])
def test_hand_example_of_card_30(pair, score):
    chain = {"": {pair[0]: 0.5, pair[1]: 0.5}}
    request = replace(ask(0, GO, max_new_tokens=1), signals=Wanted(semantic=20))
    ended = finish(build({"chain": chain}, P0, 4), [request])[0]
    assert -ended.signals.semantic_T[0] * ended.entropies_T[0] == pytest.approx(score, abs=1e-3)


def test_the_longest_ending_of_the_answer_is_the_state():
    chain = {"": {"a": 1.0}, "a": {"a": 0.5, "b": 0.5}, "aaa": {"b": 1.0}, "b": {"": 1.0}}
    engine = build({"chain": chain}, P0, 64)
    ended = finish(engine, [ask(k, GO, k, max_new_tokens=9) for k in range(600)])
    texts = [LETTERS.decode(e.tokens_T) for e in ended.values()]
    assert set(texts) == {"ab", "aab", "aaab"}
    assert abs(texts.count("aaab") / 600 - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 600)
    some = ended[3]
    assert np.allclose(
        engine.logprobs(np.concatenate((GO, some.tokens_T)), len(GO), 1.0), some.logprobs_T
    )


def test_a_segment_goes_on_in_the_state_that_its_prefix_left():
    chain = {"": {"a": 1.0}, "aaa": {"b": 1.0}}
    ended = finish(build({"chain": chain}, P0, 4), [ask(0, path("go\naa"), max_new_tokens=2)])[0]
    assert LETTERS.decode(ended.tokens_T) == "ab"


@pytest.mark.parametrize(("forks_inside", "cached"), [(True, 6), (False, 3)])
def test_an_ended_answer_that_paths_begin_inside_stays_cached(forks_inside, cached):
    engine = build({"chain": {"": {"a": 1.0}, "aaaa": {"": 1.0}}}, P0, 8)
    whole = replace(ask("whole", GO), forks_inside=forks_inside)
    assert finish(engine, [whole])["whole"].finish is Finish.STOP
    inside = ask("inside", np.concatenate((GO, path("aaab"))), max_new_tokens=1)
    assert finish(engine, [inside])["inside"].cached_tokens == cached


@pytest.mark.parametrize(("most", "cached"), [(3, 6), (8, 3)])
def test_only_what_ends_at_its_boundary_is_kept_for_its_children(most, cached):
    engine = build({"chain": {"": {"a": 1.0}, "aaaa": {"": 1.0}}}, P0, 8)
    ended = finish(engine, [ask("trunk", GO, keep=True, max_new_tokens=most)])["trunk"]
    assert ended.finish is (Finish.BOUNDARY if most == 3 else Finish.STOP)
    child = ask("child", np.concatenate((GO, path("aaab"))), max_new_tokens=1)
    assert finish(engine, [child])["child"].cached_tokens == cached


def test_a_steps_time_counts_prefilled_tokens_and_branches():
    slept = []
    settings = {"chain": {"": {"a": 1.0}}, "latency_s": 1.0, "prefill_s": 0.1, "branch_s": 0.01}
    engine = build(settings, P0, 8, sleep=slept.append)
    finish(engine, [ask(b, GO, b, max_new_tokens=2, keep=True) for b in range(4)])
    assert slept == pytest.approx([1 + 0.3 + 0.04, 1 + 0.04])
    forked = ask(
        "fork", np.concatenate((GO, path("ab"))), max_new_tokens=1
    )  # what was sampled was aa
    assert finish(engine, [forked])["fork"].cached_tokens == 4
    assert engine.seconds == pytest.approx(sum(slept)) and slept[-1] == pytest.approx(
        1 + 0.1 + 0.01
    )
    with pytest.raises(InvalidInput, match="prefill_s must be seconds"):
        build({"prefill_s": -1}, P0, 8)


def test_the_reconverging_toy_has_two_kinds_of_forks():
    ended = finish(
        build({"toy": "reconverging"}, P0, 64),
        [ask(k, GO, k, max_new_tokens=200) for k in range(400)],
    )
    texts = [LETTERS.decode(e.tokens_T) for e in ended.values()]
    assert {len(text) for text in texts} == {
        (toy_models.DEPTH + 1) * (toy_models.BEFORE + 1 + toy_models.AFTER)
    }
    endings = {text[-1] for text in texts}
    assert len(endings) == 8, "three choices that matter"
    assert len(set(texts)) > 100, "and four that do not"
    likeliest = finish(
        build({"toy": "reconverging"}, P0, 4), [ask(0, GO, temperature=0.0, max_new_tokens=200)]
    )[0]
    assert LETTERS.decode(likeliest.tokens_T).endswith("h0" + "H" * 17)


def test_the_one_fork_toy_is_certain_everywhere_else():
    ended = finish(
        build({"toy": "one_fork"}, P0, 64), [ask(k, GO, k, max_new_tokens=99) for k in range(64)]
    )
    for one in ended.values():
        assert one.entropies_T[toy_models.FORK_AT] == pytest.approx(math.log(16), abs=1e-2)
        assert np.delete(one.entropies_T, toy_models.FORK_AT).max() < 1e-6
        assert (
            one.finish is Finish.STOP
            and len(one.tokens_T) == toy_models.FORK_AT + 1 + toy_models.TAIL + 1
        )
    assert len({e.tokens_T.tobytes() for e in ended.values()}) > 10
    with pytest.raises(InvalidInput, match="toy must be one of reconverging, one_fork"):
        build({"toy": "other"}, P0, 4)


def test_the_head_scores_the_state_that_a_token_was_drawn_from():
    settings = {
        "chain": {"": {"a": 1.0}, "aa": {"b": 1.0}},
        "scores": {"a": 0.75, "aa": 0.25, "": 0.5},
    }
    wanted = replace(ask(0, GO, max_new_tokens=4), signals=Wanted(head=True))
    sampled = finish(build(settings, P0, 4), [wanted])[0]
    assert LETTERS.decode(sampled.tokens_T) == "aaba" and sampled.signals.head_T.tolist() == [
        0.5,
        0.75,
        0.25,
        0.5,
    ]
    assert not sampled.signals.top_ids_T_K.size and sampled.signals[1:3].head_T.tolist() == [
        0.75,
        0.25,
    ]
    settings.pop("scores")
    assert not finish(build(settings, P0, 4), [wanted])[0].signals, "no head, no score"
    assert not finish(build(settings, P0, 4), [ask(0, GO, max_new_tokens=4)])[0].signals


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 1.0])
def test_what_the_head_knows_of_a_sum_is_set(sharpness):
    """Of 12 (0.4), 13 and 14 (0.3 each) the second character tells the right answer."""
    settings = {"accuracy": 0.4, "sharpness": sharpness}
    asked = [
        replace(ask(n, path("7 + 5\n"), n, max_new_tokens=3), signals=Wanted(head=True, top=2))
        for n in range(40)
    ]
    for sampled in finish(build(settings, P0, 64), asked).values():
        right = float(LETTERS.decode(sampled.tokens_T) == "12")
        expected = [0.4, 0.4, 0.4 + sharpness * (right - 0.4)]
        assert np.allclose(
            sampled.signals.head_T, expected, atol=1e-3
        ) and sampled.signals.top_ids_T_K.shape == (3, 2)


@pytest.mark.parametrize("settings", [{"sharpness": 2.0}, {"scores": {"a": -0.1}}])
def test_scores_of_a_head_lie_between_0_and_1(settings):
    with pytest.raises(InvalidInput, match=r"must lie in 0\.\.1"):
        build(settings, P0, 4)
