"""Every query of dashboards, rules and alerts, on a real Prometheus that reads a real run."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from banyan.observability import grafana, rules
from banyan.runtime.telemetry_schema import METRICS
from services.chassis.process.telemetry.exposition import family_name
from tests.faults.harness import recipe, system, tiny_model
from tests.observability.observing import observing
from tests.observability.reading import Metrics, needs_prometheus
from tests.telemetry.otlp import receiving

DEADLINE_S = 120.0
NAME = re.compile(r"\b(?:banyan_|process_|otel_|banyan:)[\w:]+|\bup\b(?=\{)")

# Metrics of which a healthy run has none, and why.
NONE = {
    "banyan_weights_sent_bytes_total": "only with resources.weights nats or nccl",
    "banyan_weights_fallbacks_total": "only with resources.weights nats, if the object store fails",
    "banyan_logger_lost_total": "no logger loses a record",
    "banyan_spans_failed_total": "the receiver takes every span",
    "banyan_spans_dropped_total": "the queue of spans never fills",
    "banyan_segments_refused_total": "no segment is refused",
    "banyan_dead_letters_total": "no message is given up",
    "banyan_trees_dropped_total": "no tree is given up",
    "banyan_claims_returned_total": "no tree is given back",
    "banyan_scores_missing_total": "no score is missing",
    "banyan_answers_total": "only with an environment",
    "banyan_answer_duration_seconds_bucket": "only with an environment",
    "banyan_replays_total": "only with an environment",
    "banyan_step_truncated_share_sum": "only of losses with importance weights",
    "banyan_step_rejected_share_sum": "only of losses that reject",
}


def panels() -> Iterator[tuple[str, str]]:
    """Yield each query of the dashboards with its place."""
    for name, description in grafana.descriptions().items():
        for row in description["rows"]:
            for panel in row["panels"]:
                for query in grafana.queries(panel):
                    expression = query["expr"].replace("$run", ".*")
                    yield (
                        f"{name}: {panel['title']}",
                        expression.replace("$__rate_interval", "1m"),
                    )


def rules_of(kind: str) -> Iterator[tuple[str, str]]:
    """Yield name and expression of each rule of a kind: record or alert."""
    for group in rules.rules()["groups"]:
        for rule in group["rules"]:
            if kind in rule:
                yield rule[kind], rule["expr"]


QUERIES = [*panels(), *((name, name) for name, _ in rules_of("record"))]
ALERTS = dict(rules_of("alert"))


def excused(expression: str) -> bool:
    return any(name in expression for name in NONE)


def unanswered(metrics: Metrics) -> list[str]:
    """Return the queries without data that should have some, and alerts on missing metrics."""
    missing = [
        f"{where}: {query}"
        for where, query in QUERIES
        if not metrics.query(query) and not excused(query)
    ]
    for name, expression in ALERTS.items():
        metrics.query(expression)
        for metric in NAME.findall(expression):
            if metric not in NONE and not metrics.query(metric):
                missing.append(f"{name}: {metric}")
    return missing


@pytest.mark.slow
@needs_prometheus
async def test_each_query_gives_data_of_a_real_run(tmp_path: Path) -> None:
    data = recipe(tiny_model(tmp_path / "m"), budget={"steps": 5000, "minutes": 10.0})
    async with receiving() as receiver, system(tmp_path / "s", receiver.env) as made:
        await made.create(data)
        await made.reach(1)
        async with observing(tmp_path / "s", "", "--every", "0.5") as seen:
            metrics, end = Metrics(seen.address("metrics")), time.monotonic() + DEADLINE_S
            while missing := await asyncio.to_thread(unanswered, metrics):
                assert time.monotonic() < end, missing
                await asyncio.sleep(1.0)
            targets = await asyncio.to_thread(metrics.targets)
            assert {t["health"] for t in targets} == {"up"} and len(targets) == 5, targets
            assert [r["name"] for r in metrics.rules() if r["health"] != "ok"] == []
            critical = {name for name, _ in metrics.firing() if name in _critical()}
            assert critical == set()
            trace = re.search(rf"of {made.run_id} is trace (\w{{32}})", seen.lines["last step"])
            assert trace, seen.lines
            assert await seen.end() == 0
        for _ in range(100):  # spans are sent within a second
            steps = {s.trace_id.hex() for _, s in receiver.spans if s.name == "learner.step"}
            if trace[1] in steps:
                break
            await asyncio.sleep(0.1)
        assert trace[1] in steps


def _critical() -> set[str]:
    return {
        rule["alert"]
        for group in rules.rules()["groups"]
        for rule in group["rules"]
        if rule.get("labels", {}).get("severity") == "critical"
    }


def test_queries_ask_only_for_metrics_that_there_are() -> None:
    families = {family_name(name, unit) for name, (unit, _) in METRICS.items()}
    recorded = {name for name, _ in rules_of("record")}
    asked = {
        name
        for _, expression in [*panels(), *rules_of("record"), *rules_of("alert")]
        for name in NAME.findall(expression)
    }
    unknown = {
        name
        for name in asked - recorded - {"up"}
        if re.sub(r"_(total|sum|count|bucket)$", "", name) not in families and name not in families
    }
    assert unknown == set()
    assert set(NONE) <= asked, "excused, and asked by no query"
    assert recorded <= asked, "recorded, and read by nobody"
    assert len(QUERIES) > 60
