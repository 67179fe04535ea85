"""Built-in sums of several numbers with each step of the solution.

Their failures can be corrected step by step, as SCOPE (arXiv 2602.24110) does it (ADR 037). With
`examples`, worked ones come before each question as turns.
"""

import random
from typing import Any

from banyan.recipe import Task
from services.gateway.tasks.config import known, whole

NUMBERS = range(2, 10)
TERMS = 4  # by default
MOST_TERMS, MOST_EXAMPLES = 10, 8


def rows(task: Task) -> list[dict[str, Any]]:
    """Return `task.size` different sums, or all that there are, the same for the same seed.

    `task.config` may hold `terms`, the numbers of a sum, and `examples`, the sums that are worked
    out before each question; none of these is asked. `solution` has a line for each addition, from
    left to right.

    Raises InvalidInput for another setting, or one out of range.
    """
    known(task, ("terms", "examples"))
    terms = whole(task, "terms", TERMS, 2, MOST_TERMS)
    examples = whole(task, "examples", 0, 0, MOST_EXAMPLES)
    every = len(NUMBERS) ** terms
    size = min(task.size, every - examples)
    chosen = random.Random(task.seed).sample(range(every), size + examples)
    made = [_row(_terms(number, terms)) for number in chosen]
    turns = [turn for row in made[size:] for turn in _worked(row)]
    return [row | {"question": [*turns, *_asked(row)]} if turns else row for row in made[:size]]


def _asked(row: dict[str, Any]) -> list[dict[str, str]]:
    return [{"role": "user", "content": row["question"]}]


def _worked(row: dict[str, Any]) -> list[dict[str, str]]:
    return [*_asked(row), {"role": "assistant", "content": "\n".join(row["solution"])}]


def _terms(number: int, count: int) -> list[int]:
    terms = []
    for _ in range(count):
        number, digit = divmod(number, len(NUMBERS))
        terms.append(NUMBERS[digit])
    return terms


def _row(terms: list[int]) -> dict[str, Any]:
    total, solution = terms[0], []
    for term in terms[1:]:
        solution.append(f"{total} + {term} = {total + term}")
        total += term
    return {"question": " + ".join(map(str, terms)), "answer": total, "solution": solution}
