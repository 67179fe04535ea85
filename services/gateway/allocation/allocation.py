"""Allocations: their checks, and their form as messages. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Allocation, Budget
from banyan.plugins.control import MOST_TREES
from banyan.recipe import Recipe
from banyan.recipe_loader.checks import ROOM_SETTINGS
from banyan.v1 import runstore_service_pb2 as runs

MOST_BYTES = 4 << 20  # of a group's messages; a gRPC message of 64 MiB then holds several groups
PART_GROUPS, PART_BYTES = 10_000, 8 << 20  # stored by one message


def check(
    decided: Sequence[Allocation], recipe: Recipe, budget: Budget, rows: int
) -> list[Allocation]:
    """Return the allocations.

    Raise InvalidInput that names the curriculum, the group, the value and the rule.
    """
    name, wanted = recipe.control.curriculum, len(budget.ordinals)
    if not isinstance(decided, Sequence) or isinstance(decided, str | bytes):
        raise InvalidInput(
            f"control.curriculum {name} gave {_type(decided)}"
            " where a list of Allocation was asked for"
        )
    if len(decided) != wanted:
        raise InvalidInput(
            f"control.curriculum {name} filled {len(decided)} groups where {wanted} were asked for"
        )
    for ordinal, allocation in zip(budget.ordinals, decided, strict=True):
        wrong = _mistyped(allocation) or _wrong(allocation, recipe, budget, rows)
        if wrong:
            raise InvalidInput(f"control.curriculum {name}, group {ordinal}: {wrong}")
    return list(decided)


def _mistyped(allocation: object) -> str:
    """Return why an allocation could not be stored; a user's curriculum may return anything."""
    if not isinstance(allocation, Allocation):
        return f"an Allocation is wanted, got {_type(allocation)}"
    for name, optional in (("row", False), ("trees", True), ("max_new_tokens", True)):
        value: object = getattr(allocation, name)
        if not (type(value) is int or (optional and value is None)):
            return f"{name} must be an int, got {value!r} ({_type(value)})"
    if not isinstance(allocation.settings, Mapping) or not all(
        isinstance(key, str) for key in allocation.settings
    ):
        return f"settings must be a mapping by name, got {allocation.settings!r}"
    if not isinstance(allocation.messages, tuple | list):
        return f"messages must be a tuple, got {_type(allocation.messages)}"
    for message in allocation.messages:
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            return "a message has role and content, nothing else"
        if not all(isinstance(text, str) for text in message.values()):
            return "role and content of a message are strings"
    return _unstorable(allocation)


def _unstorable(allocation: Allocation) -> str:
    try:
        json.dumps(dict(allocation.settings), allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"settings must be JSON: {error}"
    if not isinstance(allocation.why, str):
        return f"why must be a string, got {_type(allocation.why)}"
    try:
        size = sum(
            len(text.encode()) for message in allocation.messages for text in message.values()
        )
        size += len(allocation.why.encode())
    except UnicodeEncodeError as error:
        return f"a text is not Unicode: {error}"
    if size > MOST_BYTES:
        return f"messages of {size} bytes; a group has at most {MOST_BYTES}"
    return ""


def _type(value: object) -> str:
    return type(value).__name__


def _wrong(allocation: Allocation, recipe: Recipe, budget: Budget, rows: int) -> str:
    if not 0 <= allocation.row < rows:
        return f"there is no row {allocation.row}; there are {rows}"
    if allocation.trees is not None and not 1 <= allocation.trees <= MOST_TREES:
        return f"{allocation.trees} trees; a group has 1 to {MOST_TREES}"
    tokens = allocation.max_new_tokens
    if tokens is not None and not 1 <= tokens <= budget.max_new_tokens:
        return f"{tokens} new tokens; the recipe allows 1 to {budget.max_new_tokens}"
    if not allocation.settings:
        return ""
    changed = sorted(ROOM_SETTINGS & set(allocation.settings)) if recipe.control.rooms else []
    if changed:
        return f"setting {changed[0]} changes what control.rooms {recipe.control.rooms} counts on"
    try:
        registry.build(
            "generate", recipe.generate.policy, {**recipe.generate.settings, **allocation.settings}
        )
    except InvalidInput as error:
        return str(error)
    return ""


def to_wire(ordinal: int, allocation: Allocation, batches: int) -> runs.GroupAllocation:
    """Return the message that the store keeps.

    `batches`: number of batches that the decision was based on.
    """
    settings = messages = ""
    if allocation.settings:
        settings = json.dumps(dict(allocation.settings), sort_keys=True)
    if allocation.messages:
        messages = json.dumps([dict(m) for m in allocation.messages], ensure_ascii=False)
    return runs.GroupAllocation(
        ordinal=ordinal,
        row=allocation.row,
        trees=allocation.trees or 0,
        settings_json=settings,
        max_new_tokens=allocation.max_new_tokens or 0,
        messages_json=messages,
        why=allocation.why,
        batches=batches,
    )


def parts(allocations: Iterable[runs.GroupAllocation]) -> Iterator[list[runs.GroupAllocation]]:
    """Yield lists that fit in one message, in order."""
    part: list[runs.GroupAllocation] = []
    size = 0
    for allocation in allocations:
        if part and (len(part) == PART_GROUPS or size + allocation.ByteSize() > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(allocation)
        size += allocation.ByteSize()
    if part:
        yield part


def from_wire(stored: runs.GroupAllocation) -> Allocation:
    """Return the allocation of a stored message."""
    return Allocation(
        row=stored.row,
        trees=stored.trees or None,
        settings=json.loads(stored.settings_json or "{}"),
        max_new_tokens=stored.max_new_tokens or None,
        messages=tuple(json.loads(stored.messages_json or "[]")),
        why=stored.why,
    )
