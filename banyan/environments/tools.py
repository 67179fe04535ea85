"""Tools of a user: typed functions, each with a word about what it changes, and whether equal calls
have equal answers.

from banyan.environments.tools import tool

@tool(effect="none", deterministic=True)
def price(item: str, pieces: int = 1) -> float:
    "Price of an item in euro."
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
EFFECT = "banyan_effect"
DETERMINISTIC = "banyan_deterministic"


def tool(
    effect: Literal["none", "state", "external"] = "external", deterministic: bool = False
) -> Callable[[F], F]:
    """Declare what a tool changes: nothing, the state of its module, or something outside.

    A function without it counts as external. Raises ValueError for another word, and where the
    brackets are missing.

    deterministic: whether equal calls on equal states have equal answers, whatever the time and the
        machine's load; deterministic runs take no other tools.
    """
    if callable(effect):
        raise ValueError(f'@tool above {_named(effect)} lacks brackets: write @tool(effect="none")')
    if effect not in ("none", "state", "external"):
        raise ValueError(
            'a tool says what it changes: @tool(effect="none"), "state" or "external"; '
            f"got {effect!r}"
        )

    def declared(function: F) -> F:
        setattr(function, EFFECT, effect)
        setattr(function, DETERMINISTIC, deterministic)
        return function

    return declared


def _named(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))


def effect_of(function: Callable[..., Any]) -> str:
    """Return what a function was declared to change; external if it was not."""
    return str(getattr(function, EFFECT, "external"))


def is_deterministic(function: Callable[..., Any]) -> bool:
    """Return whether a function was declared deterministic."""
    return getattr(function, DETERMINISTIC, False) is True
