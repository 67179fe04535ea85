"""Log lines for people and for machines, both with the trace that they belong to."""

import json
import logging
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider

from banyan.errors import InvalidInput
from services.chassis.process import telemetry
from services.chassis.process.telemetry import log_lines


def record(message: str, *args: object, error: bool = False) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise ValueError("why")
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("services.x", logging.WARNING, "x.py", 1, message, args, info)


@pytest.fixture(autouse=True)
def tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry.active, "tracer", TracerProvider().get_tracer("test"))


def test_a_json_line_has_what_one_searches_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "json")
    monkeypatch.setenv("BANYAN_RUN", "r-1")
    monkeypatch.setenv("BANYAN_NODE_ID", "rollout-0")
    written = log_lines.formatter("rollout")
    outside = json.loads(written.format(record("%d trees", 3)))
    assert outside.pop("timestamp").endswith("+00:00")
    assert outside == {
        "severity": "WARNING",
        "service.name": "rollout",
        "banyan.run": "r-1",
        "banyan.node": "rollout-0",
        "logger": "services.x",
        "message": "3 trees",
    }
    with telemetry.span("learner.step") as span:
        inside = json.loads(written.format(record("x")))
    assert (inside["trace_id"], inside["span_id"]) == span.ids


def test_a_hostile_message_stays_one_line_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "json")
    hostile = 'a\nb\x1b[31m"}\u202e {"severity": "INFO"}'
    line = log_lines.formatter("x").format(record("%s", hostile, error=True))
    assert "\n" not in line and "\x1b" not in line and "\u202e" not in line
    read = json.loads(line)
    assert read["message"] == hostile and read["severity"] == "WARNING"
    assert read["exception"].endswith("ValueError: why")


def test_a_line_for_people_ends_with_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(log_lines.FORMAT, raising=False)
    written = log_lines.formatter("verifier")
    assert written.format(record("x")).endswith("verifier WARNING services.x: x")
    with telemetry.span("learner.step") as span:
        assert written.format(record("x")).endswith(f"services.x: x (trace {span.ids[0]})")


def test_an_unknown_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "xml")
    with pytest.raises(InvalidInput, match="BANYAN_LOG_FORMAT='xml' must be text or json"):
        log_lines.formatter("x")
