"""The chat messages of a row, and the key by which rows are the same problem. Pure."""

from typing import Any

from banyan.digest import canonical
from banyan.errors import InvalidInput
from banyan.recipe import Task

ROLES = ("system", "user", "assistant", "tool")


def messages(row: dict[str, Any], task: Task) -> list[dict[str, str]]:
    """Return the prompt of a row as chat messages: the task's system message, then the row's own.

    Raise InvalidInput if the prompt is missing or is neither a text nor a list of {role, content}.
    """
    own = _own_messages(row, task)
    if not task.system:
        return own
    if own[0]["role"] == "system":
        raise InvalidInput(
            "the prompt has a system message of its own,"
            f" and task.system is {task.system!r}; keep one"
        )
    return [{"role": "system", "content": task.system}, *own]


def split_key(row: dict[str, Any], task: Task) -> bytes:
    """Return the key of a row's problem: rows of one key are on the same side of the split.

    For arithmetic and products it is the unordered pair of operands, whatever the operation (ADR
    007); for other tasks the prompt, with runs of white space made one.
    """
    if task.name in ("arithmetic", "products"):
        return canonical(sorted((row["a"], row["b"])))
    own = _own_messages(row, task)
    return canonical([[message["role"], " ".join(message["content"].split())] for message in own])


def _own_messages(row: dict[str, Any], task: Task) -> list[dict[str, str]]:
    field = task.prompt if task.name == "file" else "question"
    if field not in row:
        known = _shortened(", ".join(row)) or "none"
        raise InvalidInput(
            f"there is no field {field!r}, only {known}; set task.prompt to one of them"
        )
    prompt = row[field]
    if isinstance(prompt, str) and prompt.strip():
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, list) and prompt:
        return [_message(m, field) for m in prompt]
    expected = "a text or a list of {role, content}, and not empty"
    raise InvalidInput(f"field {field!r} is {_brief(prompt)}; it must be {expected}")


def _message(message: Any, field: str) -> dict[str, str]:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise InvalidInput(
            f"field {field!r} holds {_brief(message)}; a message has role and content, nothing else"
        )
    if message["role"] not in ROLES or not isinstance(message["content"], str):
        raise InvalidInput(
            f"field {field!r} holds {_brief(message)};"
            f" role is {', '.join(ROLES)}; content is a text"
        )
    return {"role": message["role"], "content": message["content"]}


def _brief(value: Any) -> str:
    return _shortened(repr(value), 80)


def _shortened(text: str, most: int = 1000) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
