"""A whole run that a judge grades: the key is sent, faults pass, and no log has a word of it."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.harness import recipe, system, tiny_model
from tests.verifier.judging.endpoint import Reply, endpoint, said

KEY, RUBRIC = "key-that-opens-the-judge", "Compare {completion} with {answer}, says nobody else."


def graded(number: int, body: dict[str, Any]) -> Reply:
    """Reply as a judge that compares, and is away every ninth time."""
    if number % 9 == 4:
        return 503, {}, b"away"
    given, right = body["messages"][1]["content"].split("\n")[2:8:4]
    return said(f"Score: {10 * (given.strip() == right.strip())}", total_tokens=20)


@pytest.mark.slow
async def test_a_run_is_graded_by_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    monkeypatch.setenv("BANYAN_SCORER_SECRETS", "JUDGE_API_KEY")
    monkeypatch.setenv("BANYAN_SANDBOX_NETWORK", "1")
    state = tmp_path / "state"
    with endpoint() as served:
        served.answer = graded
        settings = {"base_url": served.url, "model": "m", "rubric": RUBRIC}
        judge = {
            "name": "judge",
            "network": True,
            "secrets": ["JUDGE_API_KEY"],
            "settings": settings,
        }
        made = recipe(tiny_model(tmp_path / "model"), filter=[judge], budget={"steps": 2})
        async with system(state) as running:
            await running.create(made)
            run = await running.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    with sqlite3.connect(state / "store.sqlite") as db:
        scores = db.execute("select scorer, scorer_version, state, value from scores").fetchall()
    assert {score[:3] for score in scores} == {("judge", "1 m", 1)}, "no leaf is without a score"
    assert {score[3] for score in scores} == {0.0, 1.0}
    assert set(served.keys) == {f"Bearer {KEY}"} and len(served.asked) < 1.2 * len(scores) + 9
    logs = "".join(file.read_text(errors="replace") for file in state.rglob("*.log"))
    assert logs and KEY not in logs and "says nobody else" not in logs
