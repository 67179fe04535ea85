"""Majority votes and their labels, and group scorers in the verifier's process and in children."""

import sys
from pathlib import Path

import pytest

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from methods.filter.answers import EXTRACTORS
from methods.filter.majority import Majority, hashed, vote
from methods.filter.number import Number
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring

ROW: dict[str, object] = {"question": "3 + 4"}  # no answer


def test_the_ratio_counts_the_missing_ones_too():
    """majority_ratio = count / N, and N counts completions without an answer (TTRL, arXiv
    2504.16084)."""
    assert vote(["7", "7", "8", None]) == ("7", 0.5)
    assert vote(["12"] * 20 + [None] * 12) == ("12", 20 / 32)  # N_votes = 32
    assert vote([None, None]) == (None, 0.0) and vote([]) == (None, 0.0)


def test_the_first_of_equals_is_the_label():
    assert vote(["8", "7", "7", "8"]) == ("8", 0.5)
    assert vote(["7", "8", "8", "7"]) == ("7", 0.5)


def test_who_agrees_gets_1_and_the_others_0():
    scores = Majority(take="last").score_group(["it is 7", "7.0", "3 + 4 = 7", "8", "no idea"], ROW)
    assert [score.value for score in scores] == [1, 1, 1, 0, 0]
    assert {score.parts["majority_ratio"] for score in scores} == {3 / 5}
    assert {score.parts["label_hash"] for score in scores} == {hashed("7")} != {hashed("8")}


def test_without_any_answer_there_is_no_label_and_no_reward():
    scores = Majority().score_group(["well", "7 or 8", ""], ROW)
    assert scores == [Scored(0.0, {"majority_ratio": 0.0})] * 3


@pytest.mark.parametrize("take", ["only", "last"])
@pytest.mark.parametrize(
    "completion", ["7", "1,000", "-3", "−3", "3 + 4 = 7", "1e3", "7.50", "-0", "none", "9" * 65]
)
def test_an_answer_is_what_the_scorer_number_compares(completion: str, take: str):
    answer = EXTRACTORS["number"](completion, take)
    scorer = Number(take=take)
    if answer is None:
        assert all(
            scorer.score(completion, {"answer": n}) == Scored(0.0)
            for n in (7, 1000, -3, 4, 3, 0, 7.5)
        )
    else:
        assert scorer.score(completion, {"answer": answer}) == Scored(1.0)


def test_equal_numbers_are_one_answer():
    answers = {EXTRACTORS["number"](text, "only") for text in ("7", "7.0", "+7.000", "007")}
    assert answers == {"7"}
    assert EXTRACTORS["number"]("-0.0", "only") == EXTRACTORS["number"]("0", "only") == "0"
    assert EXTRACTORS["tag"]("<answer> a </answer> so <answer>b</answer>", "only") == "b"
    assert EXTRACTORS["tag"]("b", "only") is None and EXTRACTORS["text"](" b ", "only") == "b"


def test_plain_fractions_are_one_answer_however_they_are_written():
    half = {
        EXTRACTORS["tag"](f"<answer>{text}</answer>", "only")
        for text in ("1/2", " 2 / 4", "0.5", "+0.50", ".5", "1.5/3")
    }
    assert (
        half == {"1/2"}
        and EXTRACTORS["text"]("\u22126/4", "only") == EXTRACTORS["text"]("-1.5", "only") == "-3/2"
    )
    assert {EXTRACTORS["text"](text, "only") for text in ("7", "7.0", "14/2", "007")} == {"7"}
    for text in ("1/0", "1/2/3", "a/b", "1/2 kg", "-", "/2", "1e3", "9" * 65):
        assert EXTRACTORS["text"](text, "only") == text, "no plain number, so as it is"
    assert vote([EXTRACTORS["text"](t, "only") for t in ("1/2", "0.5", "2")]) == ("1/2", 2 / 3)


def test_bad_settings_are_named():
    with pytest.raises(InvalidInput, match="extract must be one of number, tag, text, got 'word'"):
        registry.build("filter", "majority", {"extract": "word"})
    with pytest.raises(InvalidInput, match="take must be only or last"):
        registry.build("filter", "majority", {"take": "first"})


async def test_the_verifier_scores_a_group_in_its_own_process_or_in_a_child(
    tmp_path: Path, monkeypatch
):
    (tmp_path / "grouped.py").write_text(
        "def longest(completions, **row):\n"
        "    most = max(map(len, completions))\n"
        "    return [float(len(c) == most) for c in completions]\n"
        "def short(completions, **row):\n"
        "    return [1.0]\n"
        "def odd(completions, **row):\n"
        "    return [float('nan') if c == 'x' else row['bonus'] for c in completions]\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    scoring = Scoring(Pool(Limits(deadline_s=5.0)))
    try:
        own = await scoring.score_group(
            ScorerSpec("majority", {}, group=True), ["7", "7", "8"], ROW
        )
        assert [(v.version, v.outcome.value) for v in own] == [("3", 1.0), ("3", 1.0), ("3", 0.0)]
        longest = await scoring.score_group(
            ScorerSpec("grouped:longest", {}, group=True), ["a", "bcd", "ef"], ROW
        )
        assert [v.outcome.value for v in longest] == [0.0, 1.0, 0.0] and len(
            {v.version for v in longest}
        ) == 1
        short = await scoring.score_group(
            ScorerSpec("grouped:short", {}, group=True), ["a", "b"], ROW
        )
        assert [v.outcome for v in short] == [
            Unscorable("EXCEPTION: 1 scores for 2 completions")
        ] * 2
        odd = await scoring.score_group(
            ScorerSpec("grouped:odd", {}, group=True), ["x", "y"], {"bonus": 0.5}
        )
        assert isinstance(odd[0].outcome, Unscorable) and odd[1].outcome == Scored(0.5)
        alone = await scoring.score(ScorerSpec("majority", {}), "7", ROW)
        assert (
            isinstance(alone.outcome, Unscorable) and "scores whole groups" in alone.outcome.reason
        )
        none = await scoring.score_group(ScorerSpec("grouped:absent", {}, group=True), ["x"], ROW)
        assert isinstance(none[0].outcome, Unscorable) and "absent" in none[0].outcome.reason
    finally:
        await scoring.close()


def test_a_text_that_is_no_unicode_is_an_answer_like_any_other() -> None:
    scores = Majority(extract="text").score_group(["x\ud800", "x\ud800", "a"], {})
    assert [score.value for score in scores] == [1.0, 1.0, 0.0]
