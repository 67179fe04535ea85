"""Judges behind a real endpoint: votes, repetitions, budgets; and no fault is ever a reward."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from banyan.plugins import Scored, Unscorable
from services.verifier.judging.judging import Judging
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring
from tests.verifier.judging.endpoint import Endpoint, Reply, endpoint, said

ROW = {"question": "2 + 3", "answer": 5}
RUBRIC = "Question: {question} Right: {answer} Answer: {completion}"


@pytest.fixture
def served() -> Iterator[Endpoint]:
    with endpoint() as made:
        yield made


@pytest.fixture
async def scoring(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scoring]:
    monkeypatch.setenv("JUDGE_API_KEY", "key-of-the-judge")
    judging = Judging(network=True, secrets=["JUDGE_API_KEY", "NOT_SET"])
    made = Scoring(Pool(Limits()), judging=judging)
    yield made
    await made.close()


def spec(served: Endpoint, *, network: bool = True, secrets: Any = (), **more: Any) -> ScorerSpec:
    settings = {"base_url": served.url, "model": "m", "rubric": RUBRIC, "seconds": 5.0, **more}
    return ScorerSpec("judge", settings, network=network, secrets=tuple(secrets))


async def outcome(
    scoring: Scoring, judge: ScorerSpec, completion: str = "five", run: str = "r"
) -> Scored | Unscorable:
    return (await scoring.score(judge, completion, ROW, run_id=run)).outcome


async def test_votes_are_combined_and_the_key_is_sent(scoring: Scoring, served: Endpoint) -> None:
    replies = ["fine\n**Score: 9**", "I would not say", "Score: 2", "score: 7.0\n", "Score: 11"]
    served.answer = lambda n, body: said(replies[n])
    judge = spec(served, votes=5, temperature=0.5, secrets=["JUDGE_API_KEY"], extra={"top_p": 0.5})
    verdict = await scoring.score(judge, "five", ROW, run_id="r")
    assert verdict.version == "1 m"
    assert verdict.outcome == Scored(0.7, {"score": 7.0, "votes": 3.0, "spread": 7.0})
    assert set(served.keys) == {"Bearer key-of-the-judge"}
    asked = served.asked[0]
    assert (asked["model"], asked["temperature"], asked["top_p"]) == ("m", 0.5, 0.5)
    assert "five" in asked["messages"][1]["content"] and "2 + 3" in asked["messages"][1]["content"]


async def test_equal_questions_are_asked_once(scoring: Scoring, served: Endpoint) -> None:
    judge = spec(served)
    scores = await asyncio.gather(*(outcome(scoring, judge) for _ in range(8)))
    assert set(map(str, scores)) == {str(scores[0])} and len(served.asked) == 1
    await outcome(scoring, judge, run="another")
    assert len(served.asked) == 1 and served.keys == [None]
    await outcome(scoring, judge, "six")
    await outcome(scoring, spec(served, most=5.0), "five")
    assert len(served.asked) == 3
    small = spec(served, cache=1, max_tokens=7)
    for completion in ("a", "b", "a"):
        await outcome(scoring, small, completion)
    assert len(served.asked) == 6


async def test_silence_is_0_and_asks_nobody(scoring: Scoring, served: Endpoint) -> None:
    assert await outcome(scoring, spec(served), " \n") == Scored(0.0, {"votes": 0.0})
    assert not served.asked


async def test_an_endpoint_that_is_away_for_a_while_costs_time_alone_and_is_said_once(
    scoring: Scoring, served: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    faults: list[Reply] = [(503, {}, b""), (429, {"Retry-After": "0"}, b""), (200, {}, b"<html>")]
    served.answer = lambda n, body: faults[n] if n < 3 else said("Score: 10")
    assert await outcome(scoring, spec(served, seconds=20.0)) == Scored(
        1.0, {"score": 10.0, "votes": 1.0, "spread": 0.0}
    )
    assert len(served.asked) == 4
    warnings = [record.message for record in caplog.records if "asked again" in record.message]
    assert len(warnings) == 1 and "503 Service Unavailable; it is asked again, for" in warnings[0]
    served.answer = lambda n, body: (503, {}, b"")
    away = [outcome(scoring, spec(served, seconds=0.4), str(number)) for number in range(5)]
    await asyncio.gather(*away)
    warnings = [record.message for record in caplog.records if "asked again" in record.message]
    assert len(warnings) == 2, "it had answered, and is away once more"


async def test_what_stays_away_leaves_no_score(scoring: Scoring, served: Endpoint) -> None:
    served.answer = lambda n, body: (500, {}, b"five")
    failed = await outcome(scoring, spec(served, seconds=0.4))
    assert isinstance(failed, Unscorable) and failed.retry
    assert failed.reason.startswith("INFRASTRUCTURE: judge at 127.0.0.1:")
    assert "in 0.4 s: 500 Internal Server Error" in failed.reason and "five" not in failed.reason
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        served.url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        hung = await outcome(scoring, spec(served, seconds=0.2))
    closed = await outcome(scoring, spec(served, seconds=0.2), "six")
    assert isinstance(hung, Unscorable) and "it did not answer" in hung.reason
    assert isinstance(closed, Unscorable) and "ConnectionRefusedError" in closed.reason


async def test_a_refusal_is_no_matter_of_time(
    scoring: Scoring, served: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    served.answer = lambda n, body: (401, {}, b"five, says key-of-the-judge")
    with caplog.at_level(logging.DEBUG):
        refused = await outcome(scoring, spec(served, secrets=["JUDGE_API_KEY"]))
    assert isinstance(refused, Unscorable) and len(served.asked) == 1
    assert "answers 401 Unauthorized" in refused.reason
    for told in (refused.reason, caplog.text):
        assert "five" not in told and "key-of-the-judge" not in told


async def test_votes_that_cannot_be_read_are_asked_for_once_more(
    scoring: Scoring, served: Endpoint
) -> None:
    served.answer = lambda n, body: said([None, "Score: 4 of 10", "Score: 4"][n])
    judge = spec(served)
    unread = await outcome(scoring, judge)
    assert isinstance(unread, Unscorable) and unread.retry
    assert unread.reason.startswith("INFRASTRUCTURE: none of 1 replies")
    assert (await outcome(scoring, judge)).value == 0.4  # type: ignore[union-attr]  # not kept


@pytest.mark.parametrize("bound", [{"most_requests": 2}, {"most_tokens": 20}])
async def test_a_budget_that_is_used_up_leaves_no_score_and_says_so_once(
    scoring: Scoring, served: Endpoint, caplog: pytest.LogCaptureFixture, bound: dict[str, int]
) -> None:
    served.answer = lambda n, body: said("Score: 1", total_tokens=10)
    judge = spec(served, **bound)
    scores = [await outcome(scoring, judge, f"{n}") for n in range(4)]
    assert [isinstance(score, Scored) for score in scores] == [True, True, False, False]
    assert scores[3].reason.startswith("BUDGET: the budget of")  # type: ignore[union-attr]
    assert len(served.asked) == 2 and caplog.text.count("is used up") == 1
    assert isinstance(await outcome(scoring, judge, "x", run="another"), Scored)


async def test_tokens_that_nobody_counts_are_no_budget(scoring: Scoring, served: Endpoint) -> None:
    failed = await outcome(scoring, spec(served, most_tokens=5))
    assert isinstance(failed, Unscorable) and "counts no tokens; use most_req" in failed.reason


async def test_only_what_recipe_and_operator_allow_is_asked(
    scoring: Scoring, served: Endpoint
) -> None:
    async def reason(judge: ScorerSpec, by: Scoring = scoring) -> str:
        failed = await outcome(by, judge)
        assert isinstance(failed, Unscorable)
        return failed.reason

    assert "set network: true" in await reason(spec(served, network=False))
    assert "BANYAN_SCORER_SECRETS=HOME" in await reason(spec(served, secrets=["HOME"]))
    assert "set that variable" in await reason(spec(served, secrets=["NOT_SET"]))
    assert "takes one secret" in await reason(spec(served, secrets=["A", "B"]))
    closed = Scoring(Pool(Limits()))
    assert "BANYAN_SANDBOX_NETWORK=1" in await reason(spec(served), closed)
    await closed.close()
    assert not served.asked
