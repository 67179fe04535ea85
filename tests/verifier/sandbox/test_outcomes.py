"""Outcomes from a child's answer, and from the verifier's own scorers: always fit to be sent."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from banyan import registry
from banyan.plugins import Repair, Scored, Unscorable
from banyan.plugins.filter import UNCONFINED, unconfined
from methods.filter.answers import EXTRACTORS
from services.chassis.messaging.bus import MAX_MESSAGE_BYTES
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.outcomes import MOST_PARTS, outcomes
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring, to_wire

HALF = "\ud83d"  # half a surrogate: JSON has it, UTF-8 does not
NEEDED = {"length": {"most": 9}}  # settings without a default
REPAIR = {"keep": 1, "text": "so", "step": 1, "steps": 2}


def one(answer: dict[str, Any]) -> Scored | Unscorable:
    """Return the outcome of a child's answer, which must be fit to be sent."""
    (outcome,) = outcomes(answer, 1)
    assert to_wire(outcome).ByteSize() < 16_384 * 4 + 8_192
    return outcome


def test_half_a_character_is_a_question_mark_wherever_it_stands() -> None:
    assert one({"unscorable": f"EXCEPTION: {HALF}"}) == Unscorable("EXCEPTION: ?")
    assert one({"value": 1.0, "parts": {HALF: 2.0}}) == Scored(1.0, {"?": 2.0})


def test_a_score_has_few_parts_and_short_names_and_reasons() -> None:
    parts = {f"part {number}": 1.0 for number in range(60_000)}
    assert one({"value": 1.0, "parts": parts}) == Unscorable(
        "TOO_LARGE: the scorer gave 60000 parts; at most 64 are kept"
    )
    kept = dict(list(parts.items())[:MOST_PARTS])
    assert one({"value": 1.0, "parts": kept}) == Scored(1.0, kept)
    assert one({"value": 1.0, "parts": {"n" * 10_000: 1.0}}) == Scored(1.0, {"n" * 64: 1.0})
    assert one({"unscorable": "r" * 100_000}) == Unscorable("r" * 500)
    assert len(one({"value": float("nan"), "parts": {"n" * 64: 1.0}}).reason) < 400


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"value": 1.0},
        {"value": 10**400, "parts": {}},
        {"value": 1.0, "parts": {"a": 10**400}},
        {"value": 1.0, "parts": {"a": -1e101}},
        {"value": 1e101, "parts": {}},
        {"value": 1.0, "parts": {"a": float("inf")}},
        {"value": 1.0, "parts": {}, "repair": 7},
        {"value": 1.0, "parts": {}, "repair": {**REPAIR, "keep": float("inf")}},
        {"value": 1.0, "parts": {}, "repair": {**REPAIR, "keep": 10**400}},
        {"value": 1.0, "parts": {}, "repair": {**REPAIR, "text": ""}},
        {"group": [7]},
    ],
)
def test_an_answer_that_is_none_is_a_verdict(answer: dict[str, Any]) -> None:
    assert isinstance(one(answer), Unscorable)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * 16_385, "more than 16384 characters"),
        (HALF, "lone surrogate"),
        ("so" + HALF, "lone surrogate"),
    ],
)
def test_a_repair_that_cannot_be_sent_is_left_out_and_its_value_stays(
    text: str, why: str, caplog: Any
) -> None:
    """A repair that is cut would teach something else."""
    (outcome,) = outcomes(
        {"value": 0.25, "parts": {"p": 1.0}, "repair": {**REPAIR, "text": text}}, 1, "mend\n"
    )
    assert outcome == Scored(0.25, {"p": 1.0}) and not to_wire(outcome).HasField("repair")
    (said,) = [record.getMessage() for record in caplog.records]
    assert "scorer 'mend\\n'" in said and why in said


def test_a_repair_at_its_limit_stays(caplog: Any) -> None:
    found = one({"value": 0.25, "parts": {}, "repair": {**REPAIR, "text": "€" * 16_384}})
    assert found == Scored(0.25, {}, Repair(1, "€" * 16_384, 1, 2)) and not caplog.records


async def test_our_own_scorers_are_checked_too(caplog: Any) -> None:
    scoring = Scoring(Pool(Limits()))
    for solution in ([HALF], ["x" * 20_000]):
        verdict = await scoring.score(
            ScorerSpec("steps", {}), "8", {"answer": 7, "solution": solution}
        )
        assert (
            verdict.outcome == Scored(0.0)
            and "a repair of scorer 'steps' is left out" in caplog.records[-1].getMessage()
        )
    for name, row in (("number", {"answer": HALF}), ("number", {HALF: 7})):
        verdict = await scoring.score(ScorerSpec(name, {}), "8", row)
        assert isinstance(verdict.outcome, Unscorable) and to_wire(verdict.outcome).reason
    assert to_wire(Unscorable(HALF * 10_000)).reason == "?" * 500


def test_a_tag_is_found_in_linear_time() -> None:
    """64 kB of tags that never close once took seconds."""

    def took(count: int) -> float:
        text = "<answer>" * count
        times = []
        for _ in range(5):
            began = time.thread_time()
            assert EXTRACTORS["tag"](text, "only") is None
            times.append(time.thread_time() - began)
        return min(times)

    assert took(64_000) < 0.1


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer>a</answer> <answer>b</answer>", "b"),
        ("<answer>a</answer> <answer>b", "a"),
        ("<answer>a <answer>b</answer>", "a <answer>b"),
        ("</answer><answer></answer>", None),
        ("<answer> 2/4 </answer></answer>", "1/2"),
        ("none", None),
    ],
)
def test_the_last_closed_tag_counts(completion: str, answer: str | None) -> None:
    assert EXTRACTORS["tag"](completion, "only") == answer


async def test_long_texts_of_a_group_do_not_hold_the_loop() -> None:
    scoring = Scoring(Pool(Limits()))
    longest, begun = 0.0, asyncio.Event()

    async def beat() -> None:
        nonlocal longest
        while True:
            began = time.monotonic()
            begun.set()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - began)

    beating = asyncio.create_task(beat())
    await begun.wait()
    began = time.monotonic()
    texts = ["1 " * 500_000] * 6
    await scoring.score_group(ScorerSpec("majority", {"take": "last"}, group=True), texts, {})
    took = time.monotonic() - began
    beating.cancel()
    assert longest < took / 2


def test_a_scorer_runs_unconfined_by_class_and_not_by_name() -> None:
    for name in UNCONFINED:
        assert unconfined(name, registry.build("filter", name, NEEDED.get(name, {})))
    assert not unconfined("number", registry.build("filter", "steps", {}))


@pytest.mark.parametrize("name", UNCONFINED)
@pytest.mark.parametrize(
    "text",
    [
        *("", HALF, "\0", "\x1b[2J\u202e", "1e999", "9" * 10**6, "[" * 10**6, " " * 10**6),
        *("<think>" * 150_000, "answer: " * 125_000, "A\n" * 500_000, "the " * 250_000),
    ],
    ids=lambda text: f"{len(text)}:{text[:4]!a}",
)
def test_what_runs_unconfined_takes_any_text(name: str, text: str) -> None:
    """An error in the verifier's own process would be no verdict."""
    row = {"answer": 7, "solution": ["7"], "options": list("efghijkl")}
    outcome = registry.build("filter", name, NEEDED.get(name, {})).score(text, row)
    assert isinstance(outcome, Scored) and to_wire(outcome).ByteSize() < MAX_MESSAGE_BYTES


async def test_another_plugin_under_our_name_is_not_run_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Impostor:
        name, version = "number", "1"

    monkeypatch.setattr(registry, "build", lambda axis, name, settings: Impostor())
    outcome = (
        await Scoring(Pool(Limits())).score(ScorerSpec("number", {}), "7", {"answer": 7})
    ).outcome
    assert isinstance(outcome, Unscorable) and "not Banyan's own" in outcome.reason


def test_a_repair_at_its_limit_fits_a_message() -> None:
    score = to_wire(
        Scored(1.0, {f"{n:064}": 1.0 for n in range(MOST_PARTS)}, Repair(1, "€" * 16_384, 1, 1))
    )
    assert score.ByteSize() < MAX_MESSAGE_BYTES // 4
