"""Places that get no answer any more: how many attempts they had, and whose fault it was."""

import asyncio

import pytest

from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.reasons import Reason
from services.verifier.environments.unanswerable import Places, Unanswerable, foreign

LOST = TemporaryError("the child died")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_nothing_acts_at_or_below_a_place_that_has_ended(at: int) -> None:
    places, path = Places(), [b"a", b"b", b"c"]
    end = Unanswerable(path[at], Reason.DEADLINE, "its episode is over")
    places.check(path)
    places.end(end)
    with pytest.raises(Unanswerable) as raised:
        places.check(path)
    assert raised.value is end
    places.check([b"x", b"y"])


def test_the_third_attempt_of_an_action_is_its_last() -> None:
    places = Places()
    places.count(b"b", LOST)  # another one's do not count
    for _ in range(2):  # it may be asked for again later, with as many attempts
        for _ in range(2):
            places.count(b"a", LOST)
        with pytest.raises(Unanswerable, match="3 times: the child died") as raised:
            places.count(b"a", LOST)
        assert (raised.value.place, raised.value.reason) == (b"a", Reason.INFRASTRUCTURE)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refused("other", Reason.ENVIRONMENT_DIVERGED), Reason.ENVIRONMENT_DIVERGED),
        (KeyError("field"), Reason.ENVIRONMENT_FAULT),
        (InvalidInput("reset raised"), Reason.ENVIRONMENT_FAULT),
        (Refused("by the operator"), Reason.INFRASTRUCTURE),
    ],
)
def test_what_an_environment_raises_says_whose_fault_it_is(error: Exception, reason: str) -> None:
    with pytest.raises(Unanswerable) as raised, foreign("maze", b"a"):
        raise error
    assert (raised.value.place, raised.value.reason) == (b"a", reason)
    with pytest.raises(TemporaryError), foreign("maze", b"a"):
        raise LOST


def test_an_action_that_is_given_up_is_nobodys_fault() -> None:
    with pytest.raises(asyncio.CancelledError), foreign("maze", b"a"):
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidInput("environment maze: reset raised KeyError"), "environment maze: reset raised"),
        (InvalidInput("seconds is wrong"), "environment maze: seconds is wrong"),
        (KeyError("field"), r"environment maze: raised KeyError: 'field' \(.*, line \d+\)"),
    ],
)
def test_what_went_wrong_is_said_once(error: Exception, message: str) -> None:
    with pytest.raises(Unanswerable, match=f"^{message}"), foreign("maze", b"a"):
        raise error
