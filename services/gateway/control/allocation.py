"""Whether a curriculum's allocations can be opened. Pure."""

from collections.abc import Sequence

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Allocation, Budget
from banyan.recipe import Recipe

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
