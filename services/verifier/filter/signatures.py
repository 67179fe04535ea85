"""Signatures of users' reward functions: the arguments that one wants, and those that it can get.

Banyan calls with one completion, or with `group: true` with all of a group, and the row's fields. A
function with the parameters `prompts` and `completions` is one of TRL (GRPOTrainer, custom reward
functions): all its arguments are lists of one length. With `group: true` it is called so.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from banyan.errors import InvalidInput
from banyan.plugins import Row

ONE = "def reward(completion: str, **row) -> float"
GROUP = "def reward(completions: list[str], **row) -> list[float]"
_PROMPTS = ("prompt", "question")  # fields of rows, one of which holds the prompt
_SAMPLES = ("one text", "another")


def is_trl(function: Callable[..., Any]) -> bool:
    """Return whether a function has the parameters of TRL's reward functions."""
    return {"prompts", "completions"} <= set(_parameters(function))


def trl_arguments(completions: Sequence[str], row: Row) -> dict[str, list[Any]]:
    """Return the arguments of TRL's reward functions for a group: lists of one length.

    As in TRL, completions are conversations of one message if the prompt is a conversation. Raises
    InvalidInput for a row without a prompt.
    """
    field = next((field for field in _PROMPTS if field in row), None)
    if field is None:
        raise InvalidInput(
            f"it wants prompts, and the row has no field {' or '.join(_PROMPTS)}, only "
            f"{', '.join(map(str, row)) or 'none'}"
        )
    answers: list[Any] = list(completions)
    if isinstance(row[field], list):
        answers = [[{"role": "assistant", "content": text}] for text in completions]
    columns = {str(name): [value] * len(answers) for name, value in row.items()}
    return columns | {"prompts": [row[field]] * len(answers), "completions": answers}


def check(
    function: Callable[..., Any],
    name: str,
    row: Row,
    *,
    group: bool,
    turns: Mapping[str, Sequence[Any]],
) -> None:
    """Raise InvalidInput, with the remedy, if a function cannot be called for a row.

    turns: its parameter for the path's turns, if it has one.
    """
    form = GROUP if group else ONE
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{name} is a generator, not a function that returns; it must be {form}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a built-in function without a known signature
    shown = f"{name}{signature}"
    if not group and _wants_group(function):
        raise InvalidInput(
            f"{shown} wants all completions of a group, as TRL's functions do, and would get one. "
            "Name it in `filter` with `group: true`, and the scorers of evaluations in "
            "`eval.filter`; with a parameter `prompts` beside `completions` it gets each field of "
            "the row as TRL gives it, in a list as long as completions, and without it as it is. "
            f"Or change it to {ONE}"
        )
    try:
        if group and is_trl(function):
            signature.bind(**trl_arguments(_SAMPLES, row))
        else:
            signature.bind(list(_SAMPLES) if group else _SAMPLES[0], **turns, **row)
    except (TypeError, InvalidInput) as error:
        fields = ", ".join(map(str, row)) or "no fields"
        raise InvalidInput(
            f"{shown} cannot take a row with {fields}: {error}. It wants "
            f"{', '.join(_parameters(function)) or 'nothing'}; it can get "
            f"{', '.join(_given(function, row, group))}. It must be {form}"
        ) from None


def _wants_group(function: Callable[..., Any]) -> bool:
    return is_trl(function) or _parameters(function)[:1] == ["completions"]


def _given(function: Callable[..., Any], row: Row, group: bool) -> list[str]:
    first = ["completions"] if group else ["completion"]
    return (["prompts"] if group and is_trl(function) else []) + first + list(map(str, row))


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return []
    stars: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    return [stars.get(parameter.kind, "") + parameter.name for parameter in parameters]
