"""Identity: the golden vectors of docs/segment-encoding.md, and changes that alter an id or not."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.digest import row_digest, tree_id
from banyan.errors import InvalidInput
from banyan.segment import Finish, Kind, Origin, Sampling, Segment
from banyan.wire.segments import segment_from_wire, segment_to_wire

DOC = Path(__file__).parents[2] / "docs" / "segment-encoding.md"


def vectors() -> list[dict]:
    blocks = re.findall(r"```json\n(.*?)```", DOC.read_text(), re.S)
    return [json.loads(block) for block in blocks]


def segment_of(fields: dict) -> Segment:
    bias = tuple((token, added) for token, added in fields["sampling"].get("bias", ()))
    sampling = Sampling(
        **{**fields["sampling"], "stop": tuple(fields["sampling"]["stop"]), "bias": bias}
    )
    return Segment(
        tree_id=bytes.fromhex(fields["tree_id"]),
        parent=bytes.fromhex(fields["parent"]),
        fork=fields["fork"],
        ordinal=fields["ordinal"],
        kind=Kind[fields["kind"]],
        origin=Origin[fields["origin"]],
        tokens_T=np.array(fields["tokens"]),
        logprobs_T=np.array(fields["logprobs"]),
        sampled_logprobs_T=np.array(fields.get("sampled_logprobs", [])),
        policy=bytes.fromhex(fields["policy"]),
        sampling=sampling,
        finish=Finish[fields["finish"]],
    )


def test_golden_vectors() -> None:
    result = vectors()
    assert len(result) == 4
    for vector in result:
        segment = segment_of(vector["segment"])
        assert segment.encode().hex() == vector["encoding"]
        assert segment.id.hex() == vector["id"]


def test_a_logit_bias_is_part_of_the_identity_and_none_changes_nothing() -> None:
    plain = policy_segment()
    ids = {
        policy_segment(sampling=Sampling(bias=bias)).id
        for bias in ((), ((3, 1.0),), ((3, -1.0),), ((4, 1.0),))
    }
    assert len(ids) == 4 and plain.id == policy_segment(sampling=Sampling(bias=())).id in ids
    biased = policy_segment(sampling=Sampling(bias=((3, 1.0), (7, -100.0))))
    back = segment_from_wire(segment_to_wire(biased))
    assert back.id == biased.id and back.sampling == biased.sampling and biased.sampling.truncated


@pytest.mark.parametrize(
    "bias",
    [
        ((3, 1.0), (3, 2.0)),
        ((7, 1.0), (3, 1.0)),
        ((-1, 1.0),),
        ((3, 0.0),),
        ((3, 0.1),),  # no float32: it would come back as another number
        ((3, float("nan")),),
        ((3, -101.0),),
        tuple((token, 1.0) for token in range(1025)),
    ],
)
def test_a_bias_has_one_form(bias: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(InvalidInput, match="logit bias"):
        Sampling(bias=bias)


def test_tree_and_row_digests_are_frozen() -> None:
    row = row_digest({"question": "3 + 4", "answer": 7})
    assert row.hex() == "9fbc35eca7597db4a3c44ab00a0a99545a7236c9b13f7596889a60279b83e08d"
    assert row == row_digest({"answer": 7, "question": "3 + 4"})
    assert tree_id("r", "g", row, 0) != tree_id("r", "g", row, 1)


def policy_segment(**changes) -> Segment:
    base = Segment(
        b"t" * 32,
        b"p" * 32,
        3,
        0,
        Kind.POLICY,
        np.array([1, 2]),
        np.array([-0.5, -1.0]),
        policy=b"d" * 32,
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"tree_id": b"u" * 32},
        {"parent": b"q" * 32},
        {"fork": 2},
        {"ordinal": 1},
        {"kind": Kind.FORCED, "origin": Origin.BRANCH},
        {"tokens_T": np.array([1, 3])},
        {"logprobs_T": np.array([-0.5, -1.0000001])},
        {"sampled_logprobs_T": np.array([-0.5, -1.0])},
        {"policy": b"e" * 32},
        {"sampling": Sampling(temperature=0.9)},
        {"sampling": Sampling(stop=("x",))},
        {"sampling": Sampling(seed=1)},
        {"finish": Finish.STOP},
    ],
)
def test_every_hashed_field_changes_the_id(changes: dict) -> None:
    assert policy_segment(**changes).id != policy_segment().id


@pytest.mark.parametrize(
    "changes",
    [
        {"producer": "n"},
        {"text": "x"},
        {"cached_tokens": 9},
        {"entropies_T": np.array([0.1, 0.2])},
        {"policy_step": 4},
    ],
)
def test_no_other_field_does(changes: dict) -> None:
    assert policy_segment(**changes).id == policy_segment().id


def test_minus_zero_is_zero_and_other_non_numbers_are_refused() -> None:
    assert (
        policy_segment(logprobs_T=np.array([-0.0, -1.0])).id
        == policy_segment(logprobs_T=np.array([0.0, -1.0])).id
    )
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(InvalidInput, match="finite"):
            policy_segment(logprobs_T=np.array([bad, -1.0]))


def test_a_policy_segment_needs_a_logprob_per_token() -> None:
    with pytest.raises(InvalidInput, match="1 log-probs"):
        policy_segment(logprobs_T=np.array([-1.0]))


tokens = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(tokens, st.data())
def test_the_wire_keeps_a_segment(ids: list[int], data: st.DataObject) -> None:
    floats = st.floats(-50, 0, width=32)
    logprobs = data.draw(st.lists(floats, min_size=len(ids), max_size=len(ids)))
    segment = policy_segment(
        tokens_T=np.array(ids, np.int32), logprobs_T=np.array(logprobs, np.float32), text="é"
    )
    back = segment_from_wire(segment_to_wire(segment))
    assert back.id == segment.id and back.text == "é" and back.tokens_T.tolist() == ids


@given(st.binary(min_size=32, max_size=32))
def test_a_forged_id_is_refused(forged: bytes) -> None:
    message = segment_to_wire(policy_segment())
    message.id = forged
    with pytest.raises(InvalidInput, match="digest"):
        segment_from_wire(message)
