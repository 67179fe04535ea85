"""One trace: a prompt's spans from all five services, with their parents and links, over OTLP."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from banyan.runtime.telemetry_schema import ATTRIBUTES, METRICS, SERVICES, SPANS, is_call
from banyan.v1 import runstore_service_pb2 as rs
from tests.faults import tool_load
from tests.faults.harness import recipe, system, tiny_model
from tests.telemetry.otlp import receiving

pytestmark = pytest.mark.slow


async def test_a_prompts_life_is_one_trace(tmp_path: Path) -> None:
    async with receiving() as receiver, system(tmp_path / "s", receiver.env) as made:
        await made.create(tool_load.tool_load(tmp_path, tool_load.CALCULATOR, steps=2))
        run = await made.finish()
        await asyncio.sleep(1.0)  # the exporters' batch delay
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    check_spans(receiver.spans)
    assert receiver.metrics <= set(METRICS), receiver.metrics - set(METRICS)
    wanted = {"banyan.segments.stored", "banyan.answers", "banyan.log.waiting", "banyan.spans.sent"}
    assert wanted <= receiver.metrics


async def test_of_few_traces_those_that_failed_are_sent_whole(tmp_path: Path) -> None:
    scorer = {"name": "tests.telemetry.test_trace:picky"}
    data = recipe(tiny_model(tmp_path / "m"), filter=[scorer], eval__filter=[scorer])
    env = {"BANYAN_TRACE_SHARE": "0", "BANYAN_TRACE_SLOW_S": "1000"}
    async with receiving() as receiver, system(tmp_path / "s", receiver.env | env) as made:
        await made.create(data)
        await made.finish()
        await asyncio.sleep(1.0)  # the exporters' batch delay
    traces: dict[bytes, list[tuple[str, Any]]] = defaultdict(list)
    for service, span in receiver.spans:
        traces[span.trace_id].append((service, span))
    assert traces, "nothing failed"
    for spans in traces.values():
        assert any(span.status.code == 2 for _, span in spans), "a trace in which nothing failed"
    scored = [
        spans
        for spans in traces.values()
        if any(span.name == "verifier.score" for _, span in spans)
    ]
    assert scored, "no failed score"
    for spans in scored:  # what other processes did before the score failed is there, too
        assert {"gateway", "rollout", "verifier"} <= {service for service, _ in spans}
        assert "gateway.open" in {span.name for _, span in spans}


def picky(completion: str, answer: str) -> float:
    """Fail for one row in five."""
    if sum(answer.encode()) % 5 == 0:
        raise ValueError("this row is not to my taste")
    return float(completion.strip() == answer)


def check_spans(spans: list[tuple[str, Any]]) -> None:
    names = {span.name for _, span in spans}
    assert {name for name in names if not is_call(name)} <= set(SPANS)
    assert "banyan.v1.TreeStoreService/CommitBatch" in names, "no call is in a trace"
    assert {a.key for _, span in spans for a in span.attributes} <= set(ATTRIBUTES)
    assert {service for service, _ in spans} == set(SERVICES)
    by_id = {span.span_id: span for _, span in spans}
    traces: dict[bytes, list[Any]] = defaultdict(list)
    for _, span in spans:
        traces[span.trace_id].append(span)
    consumed = [t for t in traces.values() if any(s.name == "learner.consume" for s in t)]
    assert consumed, "no tree's trace reaches the learner"
    for trace in consumed:
        check_tree(trace, by_id)
    for name in ("learner.checkpoint", "rollout.refresh"):
        linked = [s for _, s in spans if s.name == name and s.links]
        assert linked, name
        assert {by_id[link.span_id].name for s in linked for link in s.links} == {"learner.step"}


def check_tree(trace: list[Any], by_id: dict[bytes, Any]) -> None:
    names = {span.name for span in trace}
    wanted = {
        "gateway.open",
        "rollout.grow",
        "rollout.segment",
        "verifier.act",
        "verifier.score",
        "treestore.ingest",
        "learner.consume",
    }
    assert wanted <= names, wanted - names
    (root,) = [span for span in trace if not span.parent_span_id]
    assert root.name == "gateway.open"
    parents = {"rollout.segment": "rollout.grow", "verifier.sandbox": "verifier.score"}
    for span in trace:
        if is_call(span.name):
            assert by_id[span.parent_span_id].trace_id == span.trace_id
        elif span is not root:
            assert by_id[span.parent_span_id].name == parents.get(span.name, "gateway.open"), (
                span.name
            )
            assert span.start_time_unix_nano <= span.end_time_unix_nano
    acts = [attributes(span) for span in trace if span.name == "verifier.act"]
    told = {"banyan.run", "banyan.tree", "banyan.action", "banyan.environment"}
    told |= {"gen_ai.operation.name", "gen_ai.tool.name"}
    for act in acts:  # whose, which and how, and never what was said
        assert set(act) == told | {"banyan.outcome", "banyan.effect"}
        assert (act["banyan.outcome"], act["banyan.effect"]) == ("OK", "NONE")
    answers = [
        a["banyan.action"]
        for a in map(attributes, trace)
        if "banyan.segment" in a and "banyan.action" in a
    ]
    assert sorted(answers) == sorted(act["banyan.action"] for act in acts)
    (consume,) = [span for span in trace if span.name == "learner.consume"]
    batch = by_id[consume.links[0].span_id]
    assert batch.name == "learner.batch" and batch.trace_id != root.trace_id
    assert any(link.trace_id == root.trace_id for link in batch.links), (
        "the batch does not link the tree"
    )


def attributes(span: Any) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in span.attributes}
