"""The rows of recipes/programs.yaml: small functions to write, their tests, and a right answer.

`python recipes/data/programs.py > recipes/data/programs.jsonl` writes them, the same each time.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

PARAMETERS = range(2, 22)  # n
TASK = "Write a Python function f(x) that returns {}."


def numbers(n: int) -> Sequence[Any]:
    return 0, 1, -3, n, n + 1, 2 * n - 1


def lists(n: int) -> Sequence[Any]:
    return [], [n, 3, n], [n + 1, -4, 2 * n], list(range(n + 2))


def texts(n: int) -> Sequence[Any]:
    return "", "banyan", "a tree of many trunks"[: n + 1], "root and branch " * 2


@dataclass(frozen=True, slots=True)
class Kind:
    """Functions of x that differ by a number n.

    asked: their value in words.
    written: it in Python.
    value: it, of x and n.
    inputs: arguments of the tests, of n: constants, and x itself, fail some of them.
    """

    asked: str
    written: str
    value: Callable[[Any, int], Any]
    inputs: Callable[[int], Sequence[Any]]


KINDS = (
    Kind("the sum of x and {n}", "x + {n}", lambda x, n: x + n, numbers),
    Kind("x minus {n}", "x - {n}", lambda x, n: x - n, numbers),
    Kind("x times {n}", "x * {n}", lambda x, n: x * n, numbers),
    Kind("the square of x plus {n}", "x * x + {n}", lambda x, n: x * x + n, numbers),
    Kind("True if x is greater than {n}, else False", "x > {n}", lambda x, n: x > n, numbers),
    Kind("the remainder of x divided by {n}", "x % {n}", lambda x, n: x % n, numbers),
    Kind("the greater one of x and {n}", "max(x, {n})", lambda x, n: max(x, n), numbers),
    Kind("the sum of the list x, plus {n}", "sum(x) + {n}", lambda x, n: sum(x) + n, lists),
    Kind("how often {n} is in the list x", "x.count({n})", lambda x, n: x.count(n), lists),
    Kind("the first {n} items of the list x", "x[:{n}]", lambda x, n: x[:n], lists),
    Kind(
        "a list of the items of the list x that are greater than {n}",
        "[i for i in x if i > {n}]",
        lambda x, n: [i for i in x if i > n],
        lists,
    ),
    Kind("the length of the text x plus {n}", "len(x) + {n}", lambda x, n: len(x) + n, texts),
    Kind("the text x repeated {n} times", "x * {n}", lambda x, n: x * n, texts),
    Kind("the last {n} characters of the text x", "x[-{n}:]", lambda x, n: x[-n:], texts),
)
EXAMPLE = Kind("twice x", "2 * x", lambda x, n: 2 * x, numbers)


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each kind and number."""
    for kind in KINDS:
        for n in PARAMETERS:
            tests = [{"call": "f", "args": [x], "result": kind.value(x, n)} for x in kind.inputs(n)]
            yield {"prompt": _prompt(kind, n), "tests": tests, "solution": _answer(kind, n)}


def _prompt(kind: Kind, n: int) -> list[dict[str, str]]:
    """Return the question behind a worked one, as turns."""
    return [
        {"role": "user", "content": TASK.format(EXAMPLE.asked)},
        {"role": "assistant", "content": _answer(EXAMPLE, n)},
        {"role": "user", "content": TASK.format(kind.asked.format(n=n))},
    ]


def _answer(kind: Kind, n: int) -> str:
    return f"```python\ndef f(x):\n    return {kind.written.format(n=n)}\n```"


if __name__ == "__main__":
    sys.stdout.writelines(json.dumps(row) + "\n" for row in rows())
