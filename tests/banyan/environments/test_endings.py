"""Endings: proven for one run, tree, place, reason and cause."""

from dataclasses import replace

import pytest

from banyan.environments import receipts
from banyan.environments.endings import Ending
from banyan.reasons import Reason
from banyan.wire.endings import from_wire, to_wire

RUN, TREE, KEY = "run", b"t" * 32, receipts.key_of("secret")


def made(place: bytes = b"a" * 32, reason: str = Reason.ENVIRONMENT_DIVERGED) -> Ending:
    return Ending.said(KEY, RUN, TREE, place=place, reason=reason, cause="it was otherwise")


def test_an_ending_proves_what_was_said_and_nothing_else() -> None:
    ending = made()
    assert ending.proves(KEY, RUN, TREE) and from_wire(to_wire(ending)) == ending
    assert not ending.proves(KEY, "other", TREE)
    assert not ending.proves(KEY, RUN, b"o" * 32)
    assert not ending.proves(receipts.key_of("theirs"), RUN, TREE)
    for change in (
        {"place": b"b" * 32},
        {"reason": Reason.INFRASTRUCTURE},
        {"cause": "it was not"},
        {"mac": b"x" * 32},
    ):
        assert not replace(ending, **change).proves(KEY, RUN, TREE)


@pytest.mark.parametrize("reason", ["EXCEPTION", "", "I dislike it"])
def test_no_other_reason_ends_a_path(reason: str) -> None:
    assert not made(reason=reason).proves(KEY, RUN, TREE)


def test_a_cause_is_one_short_line_that_a_message_can_carry() -> None:
    cause = "a\nb \ud800 " + "c" * 1000
    ending = Ending.said(KEY, RUN, TREE, place=b"a", reason="DEADLINE", cause=cause)
    assert ending.proves(KEY, RUN, TREE) and len(ending.cause) == 400
    assert ending.cause.startswith("a b \ufffd c") and "\n" not in ending.cause
    assert str(ending) == f"DEADLINE: {ending.cause}"
    assert from_wire(to_wire(ending)) == ending
    assert str(replace(ending, cause="")) == "DEADLINE"
