"""Names of spans, metrics and attributes: code and schema have the same."""

import ast
from collections.abc import Iterator
from pathlib import Path

from banyan.runtime.telemetry_schema import ATTRIBUTES, BUCKETS, METRICS, SPANS

ROOT = Path(__file__).parents[2]


def calls() -> Iterator[tuple[str, ast.Call, Path]]:
    for path in sorted((ROOT / "services").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("telemetry."):
                yield ast.unparse(node.func).removeprefix("telemetry."), node, path


def first_string(call: ast.Call) -> str:
    assert call.args and isinstance(call.args[0], ast.Constant), ast.dump(call)
    return str(call.args[0].value)


def test_every_name_is_in_the_schema() -> None:
    spans, metrics, attributes, histograms = set(), set(), set(), set()
    for verb, call, _ in calls():
        if verb in ("span", "start"):
            spans.add(first_string(call))
        if verb in ("count", "observe", "level", "watch"):
            metrics.add(first_string(call))
        if verb == "observe":
            histograms.add(first_string(call))
        if verb in ("span", "start", "count", "observe", "level", "watch"):
            attributes |= {k.arg for k in call.keywords if k.arg and k.arg.startswith("banyan_")}
    sender = {f"banyan.spans.{end}" for end in ("sent", "failed", "dropped", "forgotten")}
    metrics |= sender  # counted before and behind the queue of spans
    assert spans and spans <= set(SPANS)
    assert metrics <= set(METRICS)
    assert {a.replace("banyan_", "banyan.", 1) for a in attributes} <= set(ATTRIBUTES)
    assert set(SPANS) == spans, "a span of the schema that nothing makes"
    assert set(METRICS) == metrics, "a metric of the schema that nothing records"
    assert set(BUCKETS) == histograms, "a histogram without buckets, or buckets of none"
