"""Telemetry and the malformed headers of others."""

import pytest

from services.chassis.process import telemetry


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        "00-zz-1-01",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 31 + "-" + "1" * 16 + "-01",
    ],
)
def test_a_traceparent_that_is_none_begins_a_new_trace(traceparent: str, monkeypatch) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    monkeypatch.setattr(telemetry, "_tracer", TracerProvider().get_tracer("test"))
    span = telemetry.start("rollout.grow", traceparent, links=[traceparent])
    span.link(traceparent)
    span.end()
    assert span.traceparent and span.traceparent.split("-")[1] != "0" * 32
