"""Rows of a warm start, JSON Lines, Parquet or CSV: a prompt and its completion, or messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from banyan.recipe import Recipe, Task
from banyan.text.printable import textual

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A row: turns to go on from, and turns to learn.

    name: the row's place in its file
    key: rows of one problem have the same
    prompt: messages that are context, the recipe's system message first
    turns: the assistant's turns, and the user's or tool's between them; first and last are the
        assistant's
    """

    name: str
    key: bytes
    prompt: Sequence[Message]
    turns: Sequence[Message]


def read(path: Path, recipe: Recipe) -> list[Conversation]:
    """Return the file's rows. Raise InvalidInput that names the line and the remedy."""
    from services.gateway.tasks import sources

    if not path.is_file():
        raise InvalidInput(
            f"--rows {path}: there is no such file; name one of JSON Lines, Parquet or CSV"
            " (of a data set of the hub, save one first)"
        )
    rows = [_conversation(where, row, recipe.task.system) for where, row in sources.of_file(path)]
    if not rows:
        raise InvalidInput(f"--rows {path} holds no rows")
    return rows


def _conversation(where: str, row: Any, system: str) -> Conversation:
    try:
        prompt, turns = _parts(row)
        return _checked(where, prompt, turns, system)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None


def _parts(row: Any) -> tuple[Any, Any]:
    """Return the prompt of a row and the turns to learn, unchecked."""
    if not isinstance(row, dict):
        raise InvalidInput("a row must be an object with named fields")
    if row.get("messages") is not None:
        return _around_answer(row["messages"])
    if row.get("prompt") is None or row.get("completion") is None:
        known = ", ".join(map(str, row)) or "none"
        raise InvalidInput(
            f"the row has the fields {known}; it needs `prompt` and `completion`, or `messages`"
        )
    completion = row["completion"]
    if isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    return row["prompt"], completion


def _around_answer(messages: Any) -> tuple[Any, Any]:
    """Return the messages before the first of the assistant, and the others."""
    if not isinstance(messages, list):
        raise InvalidInput("`messages` must be a list of {role, content}")
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    if "assistant" not in roles[1:]:
        raise InvalidInput("`messages` has no turn of the assistant behind the first message")
    first = roles.index("assistant", 1)
    return messages[:first], messages[first:]


def _checked(where: str, prompt: Any, turns: Any, system: str) -> Conversation:
    from services.gateway.tasks import prompt as prompts

    task = Task(name="file", path=where, reward="none:none", system=system)
    row = {"prompt": _without_empty(prompt)}
    after = prompts.messages(
        {"completion": _without_empty(turns)},
        Task(name="file", path=where, reward="none:none", prompt="completion"),
    )
    _refuse_order([message["role"] for message in after])
    if not all(turn["content"] for turn in after if turn["role"] == "assistant"):
        raise InvalidInput("a turn of the assistant is empty; give it a text or leave it out")
    before = prompts.messages(row, task)
    if not all(textual(message["content"]) for message in (*before, *after)):
        raise InvalidInput("half characters (lone surrogates) have no tokens; mend the text")
    return Conversation(where, prompts.split_key(row, task), before, after)


def _without_empty(messages: Any) -> Any:
    """Return messages without the fields that Parquet fills with nulls."""
    if not isinstance(messages, list):
        return messages
    return [
        {key: value for key, value in message.items() if value is not None}
        if isinstance(message, dict)
        else message
        for message in messages
    ]


def _refuse_order(roles: Sequence[str]) -> None:
    for number, role in _misplaced(roles):
        wanted = "the assistant's" if number % 2 == 0 else "the user's or a tool's"
        raise InvalidInput(
            f"turn {number + 1} behind the prompt is of {role!r} and must be {wanted}; join turns "
            "of one side"
        )
    if roles[-1] != "assistant":
        raise InvalidInput(
            f"the last turn is of {roles[-1]!r}, from which nothing is learned; end with the "
            "assistant's"
        )


def _misplaced(roles: Sequence[str]) -> Iterator[tuple[int, str]]:
    for number, role in enumerate(roles):
        allowed = ("user", "tool") if number % 2 else ("assistant",)
        if role not in allowed:
            yield number, role
