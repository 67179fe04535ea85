"""Tools of a shop."""

from collections.abc import Iterator
from typing import Literal

from banyan.environments.tools import tool

PRICES = {"tea": 2.5, "rice": 1.0}
basket: list[str] = []


@tool(effect="none")
def price(item: str, pieces: int = 1, money: Literal["euro", "cent"] = "euro") -> float:
    """Price of an item.

    Not shown to models.
    """
    return PRICES[item] * pieces * (100 if money == "cent" else 1)


@tool(effect="none", deterministic=True)
def pieces(items: list[str]) -> int:
    return len(items)


@tool(effect="state")
def put(items: list[str]) -> str:
    """Put items into the basket."""
    basket.extend(items)
    return ", ".join(basket)


@tool(effect="external")
def order(address: str) -> str:
    return "ordered"


def undeclared(item: str) -> str:
    return item


@tool(effect="none")
def untyped(item) -> str:
    return item


@tool(effect="none")
def half(amount: float) -> float:
    return amount / 2


@tool(effect="none")
async def later() -> str:
    return "later"


@tool(effect="none")
def one_by_one() -> Iterator[str]:
    yield "one"


cost = price
