"""The metric of a score's time: by scorer, and by run where the score is of one."""

from typing import Any

import pytest

from services.chassis.process import telemetry
from services.verifier import scoring
from services.verifier.sandbox.worker import ScorerSpec


@pytest.mark.parametrize(("run_id", "of"), [("r", {"banyan_run": "r"}), ("", {})])
def test_a_score_of_a_run_is_measured_under_it(
    run_id: str, of: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, float, dict[str, Any]]] = []
    monkeypatch.setattr(
        telemetry, "observe", lambda name, value, **labels: measured.append((name, value, labels))
    )
    monkeypatch.setattr(scoring.time, "monotonic", lambda: 12.5)
    scoring._observe_duration(ScorerSpec("number", {}), 10.0, run_id)
    assert measured == [("banyan.score.duration", 2.5, {"banyan_scorer": "number"} | of)]
