"""Observations and receipts: identity, proof, and the encoding of TOOL segments."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.observation import Effect, Observation, ToolOutcome
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput
from banyan.segment import Finish, Kind, Origin, Sampling, Segment
from banyan.wire.segments import segment_from_wire, segment_to_wire

TREE, ACTION = bytes(range(32)), blake(b"action")
SEEN = Observation(
    environment="calculator",
    version="1",
    settings=blake(b"{}"),
    action=ACTION,
    answer=blake(b"408"),
    shown=blake(b"408"),
    outcome=ToolOutcome.OK,
    before=blake(b""),
    after=blake(b""),
    effect=Effect.NONE,
)
KEY = receipts.key_of("a secret")
RECEIPT = Receipt(SEEN, receipts.mac(KEY, "run", TREE, SEEN))
OTHERS = {
    "environment": "python",
    "version": "2",
    "settings": blake(b"{1}"),
    "action": blake(b"other"),
    "answer": blake(b"409"),
    "shown": blake(b"40"),
    "outcome": ToolOutcome.FAILED,
    "before": blake(b"1"),
    "after": blake(b"1"),
    "effect": Effect.STATE,
    "reward": 1.0,
    "done": True,
    "anchor": b"room",
}


def tool(receipt: Receipt | None = RECEIPT) -> Segment:
    return Segment(
        TREE,
        ACTION,
        5,
        0,
        Kind.TOOL,
        np.array([7, 8]),
        text="408",
        receipt=receipt,
        finish=Finish.BOUNDARY,
    )


def test_the_encoding_is_frozen() -> None:
    assert SEEN.digest.hex() == ("e99a9e149af9788afc3785a33f21aa25a6249b02ecccea258e22bbcede44fe01")
    assert tool().id.hex() == "d9c10670af7eae3c99a80edabceb52edae68cda7c88dfccae39df7c69a5a4e6d"
    assert RECEIPT.mac.hex() == "deabf9a855d15595b3e45a28dda2ac2f0759508d81c2e4c514f084089c78c968"


def test_without_a_receipt_the_first_encoding_stays() -> None:
    assert tool(None).encode()[0] == 1 and tool().encode()[0] == 2
    assert tool().encode()[1 : -1 - 36] == tool(None).encode()[1:-1]
    assert tool().encode().endswith(SEEN.digest)


def test_every_field_is_part_of_the_identity() -> None:
    assert OTHERS.keys() == Observation.__dataclass_fields__.keys()
    digests = {replace(SEEN, **{name: value}).digest for name, value in OTHERS.items()}
    assert len(digests) == len(OTHERS) and SEEN.digest not in digests


def test_the_proof_is_no_part_of_the_identity_and_minus_0_is_0() -> None:
    assert tool().id == tool(Receipt(SEEN, b"x" * 32)).id
    assert replace(SEEN, reward=-0.0).digest == SEEN.digest


def test_a_receipt_proves_this_answer_to_this_action_alone() -> None:
    assert RECEIPT.proves(KEY, "run", TREE, ACTION)
    assert not RECEIPT.proves(receipts.key_of("another"), "run", TREE, ACTION)
    assert not RECEIPT.proves(KEY, "other run", TREE, ACTION)
    assert not RECEIPT.proves(KEY, "run", blake(b"other tree"), ACTION)
    assert not RECEIPT.proves(KEY, "run", TREE, blake(b"other action"))
    for name, value in OTHERS.items():
        forged = Receipt(replace(SEEN, **{name: value}), RECEIPT.mac)
        assert not forged.proves(KEY, "run", TREE, forged.observation.action)


def test_only_tool_segments_have_receipts() -> None:
    with pytest.raises(InvalidInput, match="only a TOOL segment"):
        Segment(TREE, ACTION, 5, 0, Kind.FORCED, np.array([7]), receipt=RECEIPT)


@pytest.mark.parametrize(
    "sampled",
    [
        {"policy": b"p"},
        {"logprobs_T": [-1.0]},
        {"sampled_logprobs_T": [-1.0]},
        {"sampling": Sampling(temperature=0.5)},
        {"origin": Origin.TEACHER},
    ],
    ids=lambda sampled: next(iter(sampled)),
)
def test_an_answer_has_nothing_of_a_sample(sampled: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="which no policy samples"):
        Segment(TREE, ACTION, 5, 0, Kind.TOOL, np.array([7]), receipt=RECEIPT, **sampled)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("answer", b"short", "answer has 5 bytes; a digest has 32"),
        ("reward", float("nan"), "reward is nan; it must be finite"),
        ("reward", float("inf"), "reward is inf"),
    ],
)
def test_what_is_no_observation_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replace(SEEN, **{field: value})  # type: ignore[arg-type]


@given(
    reward=st.floats(allow_nan=False, allow_infinity=False),
    done=st.booleans(),
    anchor=st.binary(max_size=40),
    environment=st.text(max_size=8),
    outcome=st.sampled_from(ToolOutcome),
    effect=st.sampled_from(Effect),
)
def test_a_segment_survives_the_wire(
    reward: float,
    done: bool,
    anchor: bytes,
    environment: str,
    outcome: ToolOutcome,
    effect: Effect,
) -> None:
    try:
        environment.encode()
    except UnicodeEncodeError:
        return
    seen = replace(
        SEEN,
        reward=reward,
        done=done,
        anchor=anchor,
        environment=environment,
        outcome=outcome,
        effect=effect,
    )
    segment = tool(Receipt(seen, RECEIPT.mac))
    again = segment_from_wire(segment_to_wire(segment))
    assert again.id == segment.id and again.receipt == segment.receipt


def test_an_observation_that_does_not_fit_the_id_is_refused() -> None:
    message = segment_to_wire(tool())
    message.receipt.observation.reward = 1.0
    with pytest.raises(InvalidInput, match="but its fields digest to"):
        segment_from_wire(message)
    message.receipt.observation.outcome = 99  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="99 is not a valid ToolOutcome"):
        segment_from_wire(message)
