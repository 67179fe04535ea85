"""Built-in sums and products: 145 rows, a + b for 1..9 and a * b for 2..9.

Their order is fixed.
"""

from typing import Any

SUMS = range(1, 10)
PRODUCTS = range(2, 10)


def rows() -> list[dict[str, Any]]:
    """Return all 81 sums and 64 products.

    The answer is an int; the operands are there for the split and for people.
    """
    sums = [_row(a, "+", b, a + b) for a in SUMS for b in SUMS]
    return sums + [_row(a, "*", b, a * b) for a in PRODUCTS for b in PRODUCTS]


def _row(a: int, op: str, b: int, answer: int) -> dict[str, Any]:
    return {"question": f"{a} {op} {b}", "answer": answer, "a": a, "b": b, "op": op}
