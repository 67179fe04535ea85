"""Built-in products of two numbers of three digits, which a small model cannot compute alone.

A worked example comes before each question as turns: a call of the calculator, its answer, the
result.
"""

import random
from typing import Any

FACTORS = range(100, 1000)
EXAMPLES = ((214, 378),)


def rows(size: int, seed: int) -> list[dict[str, Any]]:
    """Return `size` different products, the same for the same seed; none is that of an example."""
    draws = random.Random(seed)
    every = len(FACTORS) ** 2
    wanted = draws.sample(range(every), min(size + len(EXAMPLES), every))
    pairs = [(FACTORS[n // len(FACTORS)], FACTORS[n % len(FACTORS)]) for n in wanted]
    return [_row(*pair) for pair in pairs if pair not in EXAMPLES][:size]


def _row(a: int, b: int) -> dict[str, Any]:
    turns = [turn for example in EXAMPLES for turn in _worked(*example)]
    question = [*turns, {"role": "user", "content": _asked(a, b)}]
    return {"question": question, "answer": a * b, "a": a, "b": b}


def _worked(a: int, b: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": _asked(a, b)},
        {"role": "assistant", "content": f"<calc>{a} * {b}</calc>"},
        {"role": "user", "content": str(a * b)},
        {"role": "assistant", "content": str(a * b)},
    ]


def _asked(a: int, b: int) -> str:
    return f"What is {a} times {b}?"
