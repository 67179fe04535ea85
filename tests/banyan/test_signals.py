"""Signals of tokens: their shapes, halves, parts and message."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.errors import InvalidInput
from banyan.segment import Kind, Segment
from banyan.signals import NO_SIGNALS, Signals, Wanted, joined
from banyan.v1 import tree_pb2
from banyan.wire import segments


def signals(tokens: int, top: int, semantic: bool, seed: int = 0, head: bool = False) -> Signals:
    draws = np.random.default_rng(seed)
    ids, lp = draws.integers(0, 50_000, (tokens, top)), -draws.exponential(1.0, (tokens, top))
    scores = draws.random(tokens) if head else np.zeros(0)
    return Signals(ids, lp, draws.normal(size=tokens) if semantic else np.zeros(0), scores)


def same(a: Signals, b: Signals) -> bool:
    names = ("top_ids_T_K", "top_logprobs_T_K", "semantic_T", "head_T")
    return all(getattr(a, n).tobytes() == getattr(b, n).tobytes() for n in names)


SHAPES = (st.integers(0, 6), st.integers(0, 5), st.booleans(), st.integers(0, 99), st.booleans())


@given(*SHAPES)
def test_signals_survive_the_wire_and_come_apart_and_together(
    tokens: int, top: int, semantic: bool, seed: int, head: bool
) -> None:
    item = signals(tokens, top, semantic, seed, head)
    message = segments.signals_to_wire(item)
    assert same(segments.signals_from_wire(message or tree_pb2.TokenSignals()), item) or not item
    if item and tokens >= 2:
        assert same(joined([item[:1], item[1:2], item[2:]]), item) or tokens == 2
        assert len(item[1:2].top_ids_T_K) == min(top, 1)


def test_values_are_halves_from_the_start() -> None:
    item = Signals(np.zeros((1, 1)), np.array([[-0.1]]), np.array([0.3]))
    assert item.semantic_T[0] == np.float32(np.float16(0.3)) and item.top_logprobs_T_K[
        0, 0
    ] == np.float32(np.float16(-0.1))
    assert not item.semantic_T.flags.writeable
    assert Signals(head_T=np.array([1 / 3])).head_T[0] == np.float32(np.float16(1 / 3))


def test_a_signal_that_a_part_lacks_is_left_out() -> None:
    both = joined([signals(2, 3, True), signals(1, 2, False)])
    assert both.top_ids_T_K.shape == (3, 2) and not both.semantic_T.size
    assert not joined([signals(2, 3, False), Signals()])


@pytest.mark.parametrize("name", ["top", "semantic"])
@pytest.mark.parametrize("value", [-1, 21])
def test_no_more_tokens_are_wanted_than_there_are(name: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"signal {name} runs over {value}"):
        Wanted(**{name: value})
    assert not NO_SIGNALS and Wanted(top=1)


@pytest.mark.parametrize(
    "message",
    [
        tree_pb2.TokenSignals(top=2, top_ids=b"\0" * 12, top_logprobs=b"\0" * 6),
        tree_pb2.TokenSignals(top=0, top_ids=b"\0" * 4, top_logprobs=b"\0" * 2),
        tree_pb2.TokenSignals(top=1, top_ids=b"\0" * 4, top_logprobs=b"\0" * 4),
        tree_pb2.TokenSignals(semantic=b"\0"),
        tree_pb2.TokenSignals(head=b"\0"),
    ],
)
def test_unusable_messages_are_refused(message: tree_pb2.TokenSignals) -> None:
    with pytest.raises(InvalidInput):
        segments.signals_from_wire(message)


def test_a_segment_has_a_signal_for_each_token_or_none() -> None:
    with pytest.raises(InvalidInput, match="2 tokens has 3 likeliest"):
        Segment(
            b"t", b"", 0, 0, Kind.POLICY, np.zeros(2), np.zeros(2), signals=signals(3, 1, False)
        )
    with pytest.raises(InvalidInput, match="2 tokens has 1 scores of a head"):
        Segment(
            b"t",
            b"",
            0,
            0,
            Kind.POLICY,
            np.zeros(2),
            np.zeros(2),
            signals=Signals(head_T=np.zeros(1)),
        )
    with pytest.raises(InvalidInput, match="likeliest tokens and their log-probs"):
        Signals(np.zeros((2, 2)), np.zeros((2, 1)))
