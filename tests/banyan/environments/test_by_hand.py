"""Identities and proofs of answers, from raw bytes by the words of docs/segment-encoding.md."""

import hashlib
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from banyan.environments import endings, external, receipts
from banyan.environments.observation import Effect, Observation, ToolOutcome
from banyan.environments.receipts import Receipt
from banyan.segment import Finish, Kind, Segment

DIGESTS = st.binary(min_size=32, max_size=32)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
OBSERVATIONS = st.builds(
    Observation,
    environment=TEXTS,
    version=TEXTS,
    settings=DIGESTS,
    action=DIGESTS,
    answer=DIGESTS,
    shown=DIGESTS,
    outcome=st.sampled_from(ToolOutcome),
    before=DIGESTS,
    after=DIGESTS,
    effect=st.sampled_from(Effect),
    reward=st.floats(allow_nan=False, allow_infinity=False),
    done=st.booleans(),
    anchor=st.binary(max_size=40),
)


def blake(data: bytes, **how: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32, **how).digest()


def behind_length(*fields: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(field)) + field for field in fields)


def digest(seen: Observation) -> bytes:
    names = (seen.environment.encode(), seen.version.encode())
    fields = (seen.settings, seen.action, seen.answer, seen.shown, seen.before, seen.after)
    reward = 0.0 if seen.reward == 0 else seen.reward  # −0 is written as 0
    end = struct.pack("<BdBB", seen.outcome, reward, seen.done, seen.effect)
    return blake(b"banyan.observation.v1" + behind_length(*names, *fields, seen.anchor) + end)


def answer(tree: bytes, fork: int, tokens: list[int], finish: int, seen: Observation) -> bytes:
    """Return the id of an answer: version 2, kind 3; nothing of it was sampled."""
    sampling = struct.pack("<ffiIQI", 1.0, 1.0, 0, 128, 0, 0) + behind_length(b"")
    numbers = struct.pack(f"<{len(tokens)}i", *tokens)
    text = b"\2" + behind_length(tree, seen.action) + struct.pack("<IIBB", fork, 0, 3, 0)
    text += behind_length(numbers, b"", b"", b"", sampling) + bytes([finish])
    return blake(text + behind_length(digest(seen)))


@given(
    seen=OBSERVATIONS,
    tree=DIGESTS,
    fork=st.integers(1, 2**31),
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
    finish=st.sampled_from((Finish.BOUNDARY, Finish.STOP, Finish.LENGTH)),
    run=TEXTS,
    secret=TEXTS,
)
def test_receipts(
    seen: Observation,
    tree: bytes,
    fork: int,
    tokens: list[int],
    finish: Finish,
    run: str,
    secret: str,
) -> None:
    key = blake(secret.encode(), person=b"banyan.receipt.1")
    said = behind_length(run.encode(), tree, seen.action, digest(seen))
    proof = blake(said, key=key, person=b"banyan.receipt.1")
    receipt = Receipt(seen, proof)
    assert receipts.key_of(secret) == key
    assert receipt.proves(key, run, tree, seen.action)
    numbers = np.array(tokens, np.int32)
    segment = Segment(
        tree, seen.action, fork, 0, Kind.TOOL, numbers, finish=finish, receipt=receipt
    )
    assert segment.id == answer(tree, fork, tokens, int(finish), seen)


@given(tree=DIGESTS, action=DIGESTS, run=TEXTS)
def test_endings_and_keys_of_effects(tree: bytes, action: bytes, run: str) -> None:
    key = blake(b"secret", person=b"banyan.receipt.1")
    for reason, cause in (
        ("ENVIRONMENT_DIVERGED", "answered otherwise"),
        ("ENVIRONMENT_FAULT", "reset raised KeyError: größe"),
        ("INFRASTRUCTURE", ""),
        ("DEADLINE", "over"),
        ("EFFECT_UNKNOWN", "begun"),
    ):
        said = behind_length(run.encode(), tree, action, reason.encode(), cause.encode())
        proof = blake(said, key=key, person=b"banyan.ending.2")
        assert endings.Ending(action, reason, cause, proof).proves(key, run, tree)
    assert (
        external.idempotency_key(tree, action) == blake(b"banyan.effect.v1" + tree + action).hex()
    )
