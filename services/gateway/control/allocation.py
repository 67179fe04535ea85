"""Allocations: whether they can be opened, and as messages. Pure."""

import json
from collections.abc import Sequence

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Allocation, Budget
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as runs

MOST_TREES = 1024  # of a group, as in recipes


def check(decided: Sequence[Allocation], recipe: Recipe, budget: Budget, rows: int) -> list[Allocation]:
    """The allocations. Raises InvalidInput that names the curriculum, the group, the value and the rule."""
    name, wanted = recipe.control.curriculum, len(budget.ordinals)
    if len(decided) != wanted:
        raise InvalidInput(f"control.curriculum {name} filled {len(decided)} groups where {wanted} were asked for")
    for ordinal, allocation in zip(budget.ordinals, decided, strict=True):
        wrong = _wrong(allocation, recipe, budget, rows)
        if wrong:
            raise InvalidInput(f"control.curriculum {name}, group {ordinal}: {wrong}")
    return list(decided)


def _wrong(allocation: Allocation, recipe: Recipe, budget: Budget, rows: int) -> str:
    if not 0 <= allocation.row < rows:
        return f"there is no row {allocation.row}; there are {rows}"
    if allocation.trees is not None and not 1 <= allocation.trees <= MOST_TREES:
        return f"{allocation.trees} trees; a group has 1 to {MOST_TREES}"
    if allocation.max_new_tokens is not None and not 1 <= allocation.max_new_tokens <= budget.max_new_tokens:
        return f"{allocation.max_new_tokens} new tokens; the recipe allows 1 to {budget.max_new_tokens}"
    if any(set(message) != {"role", "content"} for message in allocation.messages):
        return "a message has role and content, nothing else"
    if allocation.settings:
        registry.build("generate", recipe.generate.policy, {**recipe.generate.settings, **allocation.settings})
    return ""


def to_wire(ordinal: int, allocation: Allocation, batches: int) -> runs.GroupAllocation:
    """What the store keeps; `batches`: those that it was decided on."""
    return runs.GroupAllocation(
        ordinal=ordinal,
        row=allocation.row,
        trees=allocation.trees or 0,
        settings_json=json.dumps(dict(allocation.settings), sort_keys=True) if allocation.settings else "",
        max_new_tokens=allocation.max_new_tokens or 0,
        messages_json=json.dumps([dict(m) for m in allocation.messages]) if allocation.messages else "",
        why=allocation.why,
        batches=batches,
    )


def from_wire(stored: runs.GroupAllocation) -> Allocation:
    """What was decided."""
    return Allocation(
        row=stored.row,
        trees=stored.trees or None,
        settings=json.loads(stored.settings_json or "{}"),
        max_new_tokens=stored.max_new_tokens or None,
        messages=tuple(json.loads(stored.messages_json or "[]")),
        why=stored.why,
    )
