"""Built-in sums of several numbers with each step of the solution.

Their failures can be corrected step by step, as SCOPE (arXiv 2602.24110) does it (ADR 037).
"""

import random
from typing import Any

NUMBERS = range(2, 10)
TERMS = 4


def rows(size: int, seed: int) -> list[dict[str, Any]]:
    """Return `size` different sums of four numbers, the same for the same seed.

    There are at most 4096. `solution` has a line for each addition, from left to right.
    """
    draws = random.Random(seed)
    every = len(NUMBERS) ** TERMS
    return [_row(_terms(number)) for number in draws.sample(range(every), min(size, every))]


def _terms(number: int) -> list[int]:
    terms = []
    for _ in range(TERMS):
        number, digit = divmod(number, len(NUMBERS))
        terms.append(NUMBERS[digit])
    return terms


def _row(terms: list[int]) -> dict[str, Any]:
    total, solution = terms[0], []
    for term in terms[1:]:
        solution.append(f"{total} + {term} = {total + term}")
        total += term
    return {"question": " + ".join(map(str, terms)), "answer": total, "solution": solution}
