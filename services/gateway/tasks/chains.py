"""Built-in sums of several numbers, with each step of the way: rows whose failures can be put right (SCOPE, card 38)."""

import random
from typing import Any

NUMBERS = range(2, 10)
TERMS = 4


def rows(size: int, seed: int) -> list[dict[str, Any]]:
    """So many different sums of four numbers, the same for one seed, and as many as there are at most. `solution`: a line
    for each addition, from left to right."""
    draws = random.Random(seed)
    every = len(NUMBERS) ** TERMS
    return [_row(_terms(number)) for number in draws.sample(range(every), min(size, every))]


def _terms(number: int) -> list[int]:
    found = []
    for _ in range(TERMS):
        number, digit = divmod(number, len(NUMBERS))
        found.append(NUMBERS[digit])
    return found


def _row(terms: list[int]) -> dict[str, Any]:
    total, solution = terms[0], []
    for term in terms[1:]:
        solution.append(f"{total} + {term} = {total + term}")
        total += term
    return {"question": " + ".join(map(str, terms)), "answer": total, "solution": solution}
