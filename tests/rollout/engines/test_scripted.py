"""The scripted engine: its reported distribution is the sampled one."""

import math
import time

import numpy as np
import pytest

from banyan.draws import branch_key
from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.segment import Finish
from services.rollout.engines.scripted import script
from services.rollout.engines.scripted.engine import build
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer
from tests.rollout.conftest import ask, finish

P0 = PolicyVersion(1, 0, b"p")
LETTERS = CharacterTokenizer()


def prompt(text):
    return LETTERS.encode_chat(
        [
            {"role": "system", "content": "Answer with one number."},
            {"role": "user", "content": text},
        ]
    )


def keys(n):
    return [branch_key(1, b"x", 0, i) for i in range(n)]


def test_texts_survive_the_alphabet():
    assert LETTERS.decode(prompt("7 * 8")) == "Answer with one number.\n7 * 8\n"
    assert LETTERS.decode(LETTERS.encode_chat([{"role": "user", "content": "ü"}])) == "?\n"


@pytest.mark.parametrize("text,right", [("8 + 9", "17"), ("3 * 4", "12")])
def test_right_answers_come_as_often_as_set(text, right):
    ended = finish(
        build({"accuracy": 0.7}, P0, 64),
        [ask(i, prompt(text), k) for i, k in enumerate(keys(1000))],
    )
    answers = [LETTERS.decode(e.tokens_T) for e in ended.values()]
    share = answers.count(right) / 1000
    assert abs(share - 0.7) < 4 * math.sqrt(0.7 * 0.3 / 1000)
    for e in ended.values():
        expected = math.log(0.7 if LETTERS.decode(e.tokens_T) == right else 0.15)
        assert e.finish is Finish.STOP and float(e.logprobs_T.sum()) == pytest.approx(
            expected, abs=1e-5
        )


def test_accuracy_rises_with_the_policy_and_at_temperature_zero_the_likeliest_answer_comes():
    engine = build({"accuracy": 0.1, "gain": 0.3}, P0, 64)
    assert (
        LETTERS.decode(finish(engine, [ask(0, prompt("2 + 2"), temperature=0.0)])[0].tokens_T)
        != "4"
    )
    engine.load(PolicyVersion(1, 2, b"q"), None)
    assert (
        LETTERS.decode(finish(engine, [ask(0, prompt("2 + 2"), temperature=0.0)])[0].tokens_T)
        == "4"
    )


def test_the_chain_has_its_closed_forms():
    chain = {"": {"a": 0.5, "b": 0.25, "": 0.25}, "b": {"": 1.0}}
    requests = [ask(i, prompt("go"), k, max_new_tokens=50) for i, k in enumerate(keys(2000))]
    engine = build({"chain": chain}, P0, 256)
    ended = finish(engine, requests)
    lengths = np.array([len(e.tokens_T) for e in ended.values()])
    # E = 1 + a·E + b·1, with the end token counted: E = 1.25 / 0.5
    assert abs(lengths.mean() - 2.5) < 4 * lengths.std() / math.sqrt(2000)
    first = {float(np.float32(e.entropies_T[0])) for e in ended.values()}
    assert len(first) == 1 and first.pop() == pytest.approx(
        0.5 * math.log(2) + 2 * 0.25 * math.log(4), abs=1e-6
    )
    some = ended[7]
    path = np.concatenate((prompt("go"), some.tokens_T))
    assert np.allclose(engine.logprobs(path, len(prompt("go")), 1.0), some.logprobs_T, atol=1e-6)


def test_truncation_temperature_and_limits():
    chain = {"": {"a": 0.6, "b": 0.3, "c": 0.1}}
    engine = build({"chain": chain}, P0, 3)
    requests = [
        ask(i, prompt("go"), k, top_k=2, temperature=0.5, max_new_tokens=4)
        for i, k in enumerate(keys(50))
    ]
    ended = finish(engine, requests)
    for e in ended.values():
        assert e.finish is Finish.BOUNDARY and set(LETTERS.decode(e.tokens_T)) <= {"a", "b"}
        squares = {"a": 0.36, "b": 0.09}
        for token, lp, sampled in zip(
            LETTERS.decode(e.tokens_T), e.logprobs_T, e.sampled_logprobs_T, strict=True
        ):
            assert lp == pytest.approx(math.log(squares[token] / 0.46), abs=1e-5)
            assert sampled == pytest.approx(math.log(squares[token] / 0.45), abs=1e-5)


def test_an_abort_and_a_new_policy_return_what_there_is():
    engine = build({"chain": {"": {"a": 1.0}}}, P0, 2)
    for i in range(3):
        engine.submit(ask(i, prompt("go"), i, max_new_tokens=9))
    engine.step()
    engine.step()
    assert len(engine.abort(0).tokens_T) == 2 and len(engine.abort(2).tokens_T) == 0
    cut = engine.load(PolicyVersion(1, 1, b"q"), None)
    assert [(c.key, len(c.tokens_T), c.policy.step) for c in cut] == [(1, 2, 0)]
    assert not engine.busy


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"speed": 1}, "no setting 'speed'"),
        ({"accuracy": 1.5}, "accuracy must lie in 0..1, got 1.5"),
        ({"latency_s": -1}, "latency_s must be seconds"),
        ({"chain": {"": {"a": 0.5}}}, "sum to 1"),
        ({"chain": {"a": {"a": 1.0}}}, "for all other states"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(settings, message):
    with pytest.raises(InvalidInput, match=message):
        build(settings, P0, 4)


def test_a_prompt_of_digits_costs_what_one_of_words_costs():
    """The question is searched at the prompt's end; from the start there is a search per digit."""
    took = []
    for text in ("lorem " * 10_000, "7" * 60_000):
        begun = time.process_time()
        finish(build({}, P0, 64), [ask(i, prompt(text), k) for i, k in enumerate(keys(2))])
        took.append(time.process_time() - begun)
    assert took[1] < 10 * took[0] + 1.0, took


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("What is 8 + 9 = ?", (8, "+", 9)),
        ("x12 * 3...\n", (12, "*", 3)),
        ("1 + 2 + 3", (2, "+", 3)),
        ("1 + 2?" + "?" * 100_000, (1, "+", 2)),
        ("7" * 100 + " + " + "7" * 100, (int("7" * 100), "+", int("7" * 100))),
        ("7" * 101 + " + 1", None),
        ("1 + " + "7" * 5_000, None),  # Python refuses to read such a number
        ("8 + 9 apples", None),
        ("", None),
    ],
)
def test_the_question_is_what_a_prompt_ends_with(text, asked):
    assert script._question(text) == asked
