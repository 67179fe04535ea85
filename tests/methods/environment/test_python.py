"""The session of Python: what it asks to run, and what it says of the result."""

import pytest

from banyan.environments.observation import Effect, ToolOutcome
from banyan.environments.outcomes import TOOL_OUTCOMES
from banyan.plugins.environment import Answer
from banyan.programs.run import Outcome
from banyan.programs.session import SessionResult, Task
from methods.environment.python import Python

PYTHON = Python()
FRESH = PYTHON.reset({}, 7)


def turned(
    state: bytes, action: str, result: SessionResult | None = None
) -> tuple[Answer, list[Task]]:
    """Return the answer to an action, and the runs that it asked for."""
    turn, tasks = PYTHON.turn(state, action), list[Task]()
    try:
        tasks.append(next(turn))
        assert result is not None
        tasks.append(turn.send(result))
    except StopIteration as end:
        return end.value, tasks
    raise AssertionError("it asks for more")


def test_a_call_runs_on_the_state_before_and_leaves_the_one_after() -> None:
    result = SessionResult(Outcome.DONE, b"42\n", b"", b"after")
    answer, (task,) = turned(FRESH, "Let me see. <python>x = 6 * 7\nprint(x)</python>", result)
    assert (task.code, task.state, task.seed) == ("x = 6 * 7\nprint(x)", None, 7)
    assert (answer.text, answer.outcome, answer.effect) == ("42", ToolOutcome.OK, Effect.STATE)
    _, (following,) = turned(answer.state, "<python>x</python>", result)
    assert (following.state, following.seed) == (b"after", 7)


def test_the_last_call_counts_and_characters_behind_it_do_not() -> None:
    result = SessionResult(Outcome.DONE, b"", b"", b"")
    _, (task,) = turned(FRESH, "<python>1</python> <python>2</python> tail", result)
    assert task.code == "2"


@pytest.mark.parametrize("action", ["", "print(1)", "<python>1", "</python><python>"])
def test_what_is_no_call_runs_nothing_and_changes_nothing(action: str) -> None:
    answer, tasks = turned(FRESH, action)
    assert not tasks and answer.state == FRESH and answer.outcome is ToolOutcome.MALFORMED


@pytest.mark.parametrize(
    ("result", "text", "outcome"),
    [
        (SessionResult(Outcome.DONE), "(no output)", ToolOutcome.OK),
        (SessionResult(Outcome.DONE, b"a\n\n", b"w\n"), "a\nw", ToolOutcome.OK),
        (
            SessionResult(Outcome.EXITED, b"a\n", b"ZeroDivisionError\n"),
            "a\nZeroDivisionError",
            ToolOutcome.FAILED,
        ),
        (SessionResult(Outcome.CPU, b"a"), "a\nerror: the time is over", ToolOutcome.CPU),
        (
            SessionResult(Outcome.MEMORY, b"", b"the state has 70000 bytes"),
            "error: the memory is full",
            ToolOutcome.MEMORY,
        ),
        (SessionResult(Outcome.OUTPUT, b"x"), "x\nerror: too much output", ToolOutcome.OUTPUT),
        (SessionResult(Outcome.SIGNALLED), "error: the interpreter crashed", ToolOutcome.CRASHED),
        (SessionResult(Outcome.DONE, b"\xff"), "\ufffd", ToolOutcome.OK),
    ],
)
def test_every_end_of_a_call_is_an_answer(
    result: SessionResult, text: str, outcome: ToolOutcome
) -> None:
    answer, _ = turned(FRESH, "<python>1</python>", result)
    assert (answer.text, answer.outcome) == (text, outcome)


def test_every_outcome_that_is_the_programs_has_its_word() -> None:
    assert set(TOOL_OUTCOMES) == {outcome for outcome in Outcome if outcome.is_programs}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"begin": ""}, "begin must be a text"),
        ({"end": 3}, "end must be a text"),
        ({"seconds": 0}, "seconds must lie in"),
        ({"memory_mb": 1}, "memory_mb must be a whole number"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Python(**settings)  # type: ignore[arg-type]
