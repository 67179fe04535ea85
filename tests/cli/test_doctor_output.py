"""`banyan doctor RUN`: the series that it reads from a store, and its output."""

import contextlib
import json
from pathlib import Path

import pytest

from banyan.cli.doctor import run_report
from banyan.doctor.history import history
from banyan.doctor.series import Measured, Series
from banyan.errors import NotFound
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data
from tests.cli.made_series import STEPS, flat, made


def _stored(step: int, epoch: int, metrics: dict[str, float]) -> rs.StoredPolicy:
    ref = tree_pb2.PolicyRef(step=step, learner_epoch=epoch, digest=b"d" * 32)
    return rs.StoredPolicy(published=events_pb2.PolicyPublished(policy=ref, metrics=metrics))


def test_metrics_of_a_run_are_a_line_a_step_without_what_has_none() -> None:
    stored = [
        _stored(0, 1, {}),
        _stored(1, 1, {"b": 1.0, "a": float("nan")}),
        _stored(1, 2, {}),
        _stored(2, 2, {"a": 3.0}),
    ]
    assert plain_data.metrics(stored) == [{"step": 1, "a": None, "b": 1.0}, {"step": 2, "a": 3.0}]
    json.dumps(plain_data.metrics(stored), allow_nan=False)


def test_held_out_answers_are_those_of_finished_greedy_evaluations() -> None:
    def one(label: str, done: int = 5) -> rs.EvalProgress:
        return rs.EvalProgress(label=label, groups=5, done=done, scored=10, reward_sum=4.0)

    reported = [
        one("before-greedy"),
        one("before-sampled"),
        one("step-20-greedy"),
        one("after-greedy"),
        one("step-30-greedy", 4),
    ]
    assert list(history([], reported, 40).held_out) == [
        Measured(0, 0.4, 10),
        Measured(20, 0.4, 10),
        Measured(40, 0.4, 10),
    ]


class Told:
    """Client of a store that holds one run."""

    def __init__(self, steps: list[rs.StoredPolicy], unrepeatable: int = 0) -> None:
        self._steps, self._unrepeatable = steps, unrepeatable

    def run(self, run_id: str) -> rs.Run:
        if run_id not in "tiny-00000001":
            raise NotFound(f"there is no run {run_id}")
        recipe = json.dumps({"deterministic": True})
        return rs.Run(run_id="tiny-00000001", step=len(self._steps), recipe_json=recipe)

    def stats(self, run_id: str) -> dict[str, int]:
        return {"unrepeatable": self._unrepeatable}

    def policies(self, run_id: str) -> list[rs.StoredPolicy]:
        return self._steps

    def progress(self, run_id: str) -> rs.ReadProgressResponse:
        return rs.ReadProgressResponse()


def told(monkeypatch: pytest.MonkeyPatch, run: Series, unrepeatable: int = 0) -> None:
    client = Told([_stored(s.number, 1, dict(s.metrics)) for s in run.steps], unrepeatable)
    monkeypatch.setattr(run_report, "reading", lambda _state: contextlib.nullcontext(client))


def test_a_deterministic_run_that_is_none_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told(monkeypatch, made({}), unrepeatable=2)
    run_report.examine("tiny", tmp_path, as_json=True)
    words = "this run is not deterministic: 2 scores"
    assert json.loads(capsys.readouterr().out)["not_deterministic"].startswith(words)
    run_report.examine("tiny", tmp_path, as_json=False)
    assert words in capsys.readouterr().out
    told(monkeypatch, made({}))
    run_report.examine("tiny", tmp_path, as_json=False)
    assert "deterministic" not in capsys.readouterr().out


def test_findings_are_printed_with_evidence_and_levers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told(monkeypatch, made({"all_wrong_share": flat(0.7)}))
    run_report.examine("tiny", tmp_path, as_json=True)
    output = json.loads(capsys.readouterr().out)
    assert (output["run_id"], output["steps"]) == ("tiny-00000001", STEPS)
    (finding,) = output["findings"]
    assert (finding["name"], finding["module"]) == ("too-hard", "generate")
    (evidence,) = finding["evidence"]
    assert evidence == {
        "metric": "all_wrong_share",
        "value": pytest.approx(0.7),
        "steps": [21, 30],
        "limit": 0.5,
    }
    assert {
        "key": "generate.settings.width",
        "set": "generate.settings.width=16",
        "why": "more tries a prompt",
    } in finding["levers"]


def test_one_error_for_a_run_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told(monkeypatch, made())
    with pytest.raises(NotFound, match="there is no run other"):
        run_report.examine("other", tmp_path, as_json=False)
