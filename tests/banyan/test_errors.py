"""Reasons of errors, and the errors of users' code: InvalidInput, but for Banyan's own."""

import json

import pytest

from banyan import registry
from banyan.errors import (
    BanyanError,
    DeadlineMissed,
    InvalidInput,
    PermanentError,
    Refused,
    TemporaryError,
    users_code,
    users_place,
    with_kind,
    with_place,
)


class Unreadable(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("a text that cannot be made")


def message(error: BaseException) -> str:
    return f"mine: {error}"


@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError("x"), SystemExit("x"), BaseException("x")]
)
def test_whatever_a_users_code_raises_is_invalid_input_with_its_cause(
    error: BaseException,
) -> None:
    with pytest.raises(InvalidInput, match=r"^mine: x$") as caught, users_code(message):
        raise error
    assert caught.value.__cause__ is error


def test_an_interrupt_by_the_keyboard_passes() -> None:
    with pytest.raises(KeyboardInterrupt), users_code(message):
        raise KeyboardInterrupt


def test_an_error_whose_text_cannot_be_read_has_its_kind() -> None:
    with pytest.raises(InvalidInput, match="Unreadable: an error"), users_code(with_kind):
        raise Unreadable


@pytest.mark.parametrize("error", [Refused("x", "HELD_OUT"), TemporaryError("x")])
def test_an_error_of_banyan_leaves_the_block_as_it_is_unless_none_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, users_code(message):
        raise error
    assert caught.value is error
    with pytest.raises(InvalidInput, match=r"^mine: x$"), users_code(message, passing=()):
        raise error


def test_a_message_is_text_that_can_be_sent_whatever_it_quotes() -> None:
    assert str(Refused("a \ud800 b")) == "a \ufffd b"
    with pytest.raises(ValueError, match="half") as caught:
        raise ValueError("half \udfff")
    assert with_place(caught.value).startswith("ValueError: half \ufffd (")


def test_a_missed_deadline_is_a_temporary_error_and_a_timeout() -> None:
    error = DeadlineMissed("no ack in 5 s", delay_s=2.0)
    assert isinstance(error, TemporaryError) and isinstance(error, TimeoutError)
    assert (error.delay_s, error.reason) == (2.0, "DEADLINE_MISSED")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BanyanError("x"), "INTERNAL"),
        (PermanentError("x"), "PERMANENT"),
        (TemporaryError("x"), "TEMPORARY"),
        (Refused("x"), "REFUSED"),
        (Refused("x", "HELD_OUT"), "HELD_OUT"),
    ],
)
def test_an_error_has_the_reason_of_its_kind_unless_it_is_given_one(
    error: BanyanError, reason: str
) -> None:
    assert error.reason == reason


def test_the_place_of_an_error_is_the_innermost_of_a_users_own() -> None:
    """Not that in the library that it called, nor that of ours which called it."""

    def reset() -> None:
        json.loads("{")

    with pytest.raises(ValueError) as raised:
        reset()
    line = reset.__code__.co_firstlineno + 1
    assert users_place(raised.value) == f" (test_errors.py, line {line}, in reset)"
    with pytest.raises(InvalidInput) as raised_by_us:
        registry.find("filter", "none of ours")
    own = raised_by_us.value.with_traceback(raised_by_us.tb.tb_next)
    assert users_place(own) == ""
