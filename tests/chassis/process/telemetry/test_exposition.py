"""Prometheus reads what OpenTelemetry measured: names, labels, sums, buckets and examples."""

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as read_plain

from banyan.runtime.telemetry_schema import METRICS
from services.chassis.process import telemetry
from services.chassis.process.telemetry import metrics
from services.chassis.process.telemetry.exposition import families, family_name


class Collected:
    """A registry of Prometheus over a reader of OpenTelemetry."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Any]:
        return families(self._reader.get_metrics_data())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Collected:
    reader = InMemoryMetricReader()
    resource = Resource({"service.name": "verifier", "banyan.run": "r-1"})
    meter = MeterProvider([reader], resource).get_meter("test")
    monkeypatch.setattr(telemetry.active, "meter", meter)
    monkeypatch.setattr(telemetry.active, "tracer", TracerProvider().get_tracer("test"))
    monkeypatch.setattr(metrics, "_instruments", {})
    monkeypatch.setattr(metrics, "_levels", {})
    return Collected(reader)


def samples(measured: Collected) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(measured).decode()  # type: ignore[arg-type]
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in read_plain(text)
        for s in family.samples
    }


def test_counters_add_up_by_label_and_say_whose_they_are(measured: Collected) -> None:
    for reason, n in (("scored", 2), ("scored", 3), ("unscorable", 1)):
        telemetry.count("banyan.scores", n, banyan_scorer="number", banyan_reason=reason)
    ours = (("run", "r-1"), ("scorer", "number"), ("service", "verifier"))
    found = samples(measured)
    assert found["banyan_scores_total", (("reason", "scored"), *ours)] == 5
    assert found["banyan_scores_total", (("reason", "unscorable"), *ours)] == 1


def test_buckets_are_cumulative_and_the_unit_is_in_the_name(measured: Collected) -> None:
    for seconds in (0.0005, 0.3, 0.4, 1000.0):
        telemetry.observe("banyan.step.duration", seconds)
    found = {
        dict(labels).get("le", name): value
        for (name, labels), value in samples(measured).items()
        if name.startswith("banyan_step_duration_seconds")
    }
    assert found["0.001"] == 1 and found["0.25"] == 1 and found["0.5"] == 3
    assert found["600.0"] == 3 and found["+Inf"] == 4
    assert found["banyan_step_duration_seconds_count"] == 4
    assert math.isclose(found["banyan_step_duration_seconds_sum"], 1000.7005)


def test_an_example_carries_its_trace_in_its_own_bucket(measured: Collected) -> None:
    began = time.time()
    with telemetry.span("learner.step") as span:
        telemetry.observe("banyan.step.duration", 0.5)  # a bound belongs to the bucket below it
    telemetry.observe("banyan.step.duration", 0.003)  # outside of any trace
    text = generate_open(measured).decode()  # type: ignore[arg-type]
    examples = {
        sample.labels["le"]: sample.exemplar
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None
    }
    trace_id, span_id = span.ids
    assert list(examples) == ["0.5"]
    assert examples["0.5"].labels == {"trace_id": trace_id, "span_id": span_id}
    assert examples["0.5"].value == 0.5
    assert began <= float(examples["0.5"].timestamp) <= time.time()


def test_a_total_that_is_read_is_a_counter_and_a_level_that_is_read_is_none(
    measured: Collected,
) -> None:
    telemetry.watch("process.uptime", lambda: [(7.0, {})])
    telemetry.watch("process.cpu.time", lambda: [(3.0, {"cpu.mode": "user"})], rises=True)
    found = {name: value for (name, _), value in samples(measured).items()}
    assert found == {"process_uptime_seconds": 7.0, "process_cpu_time_seconds_total": 3.0}


def test_a_level_is_the_last_word_and_is_gone_when_nobody_states_it_again(
    measured: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (3, 2):
        telemetry.level("banyan.members", value, banyan_run="a")
    telemetry.level("banyan.members", 7, banyan_run="b")
    levels = {dict(k[1])["run"]: v for k, v in samples(measured).items() if "members" in k[0]}
    assert levels == {"a": 2, "b": 7}  # its own run goes before the process's
    clock = metrics.time.monotonic
    monkeypatch.setattr(metrics.time, "monotonic", lambda: clock() + metrics.STALE_S + 1)
    telemetry.level("banyan.members", 1, banyan_run="b")
    levels = {dict(k[1])["run"]: v for k, v in samples(measured).items() if "members" in k[0]}
    assert levels == {"b": 1}


def test_samples_of_a_metric_may_have_other_labels(measured: Collected) -> None:
    telemetry.level("banyan.log.waiting", 1, banyan_queue="LINEAGE/verifier")
    telemetry.level("banyan.log.waiting", 2, banyan_run="a")
    found = {labels: value for (_, labels), value in samples(measured).items()}
    ours = ("service", "verifier")
    assert found == {
        (("queue", "LINEAGE/verifier"), ("run", "r-1"), ours): 1.0,
        (("queue", ""), ("run", "a"), ours): 2.0,
    }


def test_nothing_measured_is_an_empty_page(measured: Collected) -> None:
    assert generate_latest(measured) == b""  # type: ignore[arg-type]


def test_every_metric_has_a_name_of_its_own_that_prometheus_takes() -> None:
    names = [family_name(name, unit) for name, (unit, _) in METRICS.items()]
    assert len(set(names)) == len(names)
    assert all(name.replace("_", "a").isalnum() for name in names)
    assert family_name("banyan.weights.bytes", "By") == "banyan_weights_bytes"
    assert family_name("banyan.log.bytes", "By") == "banyan_log_bytes"
    assert family_name("banyan.step.reward", "1") == "banyan_step_reward"


def test_a_name_that_nobody_agreed_on_is_refused(measured: Collected) -> None:
    for state in (telemetry.count, telemetry.observe, telemetry.level):
        with pytest.raises(KeyError):
            state("banyan.unheard.of", 1)  # type: ignore[operator]
    with pytest.raises(KeyError):
        telemetry.level("banyan.members", 1, banyan_color="red")
