"""Which traces are sent: all processes agree on the share, and failures bring the rest along."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.process.telemetry import kept_traces
from services.chassis.process.telemetry.kept_traces import KeptTraces

SLOW_S = 1.0
UNSHARED = (1 << 64) - 1  # the last id that a share takes
TRACES = st.integers(min_value=1, max_value=(1 << 128) - 1)


class Sent:
    """A processor that notes what it is given."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.forgotten = 0

    def count(self, name: str, n: int) -> None:
        assert name == "banyan.spans.forgotten"
        self.forgotten += n

    def on_end(self, span: Any) -> None:
        self.names.append(span.name)


def span(name: str, trace_id: int = UNSHARED, ok: bool = True, seconds: float = 0.0) -> Any:
    return SimpleNamespace(
        name=name,
        context=SimpleNamespace(trace_id=trace_id),
        status=SimpleNamespace(is_ok=ok),
        start_time=0,
        end_time=round(seconds * 1e9),
    )


def kept(share: float = 0.5, held: int = 100) -> tuple[KeptTraces, Sent, list[int]]:
    sent, told = Sent(), list[int]()
    traces = KeptTraces(sent, share=share, slow_s=SLOW_S, held=held, count=sent.count)
    traces.tell = told.append
    return traces, sent, told


@given(TRACES, st.floats(0, 1))
def test_all_processes_decide_alike_and_more_of_a_share_never_loses_a_trace(
    trace_id: int, share: float
) -> None:
    here, there = kept(share)[0], kept(share)[0]
    assert here.is_shared(trace_id) == there.is_shared(trace_id)
    assert kept(1.0)[0].is_shared(trace_id) and not kept(0.0)[0].is_shared(trace_id)
    if here.is_shared(trace_id):
        assert kept(min(1.0, share + 0.1))[0].is_shared(trace_id)


def test_a_tenth_of_the_traces_is_a_tenth() -> None:
    traces = kept(0.1)[0]
    shared = sum(traces.is_shared((2 * n + 1) * (1 << 64) // 2000) for n in range(1000))
    assert shared == 100


def test_a_trace_of_the_share_is_sent_at_once() -> None:
    traces, sent, told = kept()
    traces.on_end(span("a", trace_id=1))
    assert sent.names == ["a"] and told == []


def test_a_failure_brings_what_was_before_it_and_what_follows() -> None:
    traces, sent, told = kept()
    traces.on_end(span("before"))
    traces.on_end(span("of another trace", UNSHARED - 1))
    assert sent.names == []
    traces.on_end(span("failed", ok=False))
    traces.on_end(span("failed again", ok=False))
    traces.on_end(span("after"))
    assert sent.names == ["before", "failed", "failed again", "after"]
    assert told == [UNSHARED]  # once


def test_a_slow_span_makes_its_trace_worth_it_and_one_just_below_does_not() -> None:
    traces, sent, _ = kept()
    traces.on_end(span("quick", seconds=SLOW_S - 0.001))
    assert sent.names == []
    traces.on_end(span("slow", seconds=SLOW_S))
    assert sent.names == ["quick", "slow"]


def test_word_of_another_process_sends_what_is_held_here_and_is_not_passed_on() -> None:
    traces, sent, told = kept()
    traces.on_end(span("before"))
    assert traces.keep(UNSHARED) and not traces.keep(UNSHARED)
    traces.on_end(span("after"))
    assert sent.names == ["before", "after"] and told == []


def test_what_is_sent_makes_room_for_what_is_held() -> None:
    traces, sent, _ = kept(held=3)
    for trace_id in (UNSHARED, UNSHARED - 1):
        for n in range(3):
            traces.on_end(span(f"{trace_id} {n}", trace_id))
        traces.keep(trace_id)
    assert sent.forgotten == 0 and len(sent.names) == 6


def test_ids_of_failed_traces_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_traces, "REMEMBERED", 2)
    traces, _, _ = kept()
    assert [traces.keep(trace_id) for trace_id in (1, 2, 1, 3)] == [True, True, False, True]
    assert not traces.keep(3) and traces.keep(1), "the first of three is forgotten"


def test_the_oldest_trace_is_forgotten_when_too_much_is_held() -> None:
    traces, sent, _ = kept(held=3)
    for n in range(2):
        traces.on_end(span(f"old {n}"))
    for n in range(2):
        traces.on_end(span(f"new {n}", UNSHARED - 1))
    assert sent.forgotten == 2
    traces.keep(UNSHARED)
    assert sent.names == []
    traces.keep(UNSHARED - 1)
    assert sent.names == ["new 0", "new 1"]
