"""Built-in chains of labelled additions and subtractions modulo 10, answered step by step.

A question is a digit and K operations, `7 a+4 b-9 c+0`; its answer has six letters an operation,
`7a+4=11b-9=22c+0=2`. So an answer has 6 K letters, one wrong result makes all that follow wrong,
and the facts that a policy must know are the 200 of `FACTS`: where trees share trunks, and how long
they are, is known exactly.
"""

import random
import string
from typing import Any

from banyan.errors import InvalidInput
from banyan.recipe import Task

LABELS = string.ascii_lowercase + string.ascii_uppercase
OPERATIONS = 16  # by default
FACTS = [(a, sign, b) for sign in "+-" for a in range(10) for b in range(10)]
"""Every operation on a digit: first digit, sign, second digit."""


def rows(task: Task) -> list[dict[str, Any]]:
    """Return `task.size` different chains, the same for the same seed.

    `task.config` may hold `operations`, K. `answer` of a row is the whole chain, `last` its last
    digit, `solution` has a text an operation.

    Raises InvalidInput for another setting, a number of operations that there are no labels for,
    or so few that there are not as many chains.
    """
    operations = _operations(task)
    every = 10 * 20**operations
    if task.size > every:
        raise InvalidInput(
            f"task.size is {task.size}, and there are {every} chains of {operations} operations;"
            " take fewer, or more operations"
        )
    draws = random.Random(f"chains-mod {operations} {task.seed}")
    made: dict[str, dict[str, Any]] = {}
    while len(made) < task.size:
        row = _row(draws, operations)
        made.setdefault(row["question"], row)
    return list(made.values())


def _operations(task: Task) -> int:
    if other := sorted(task.config.keys() - {"operations"}):
        raise InvalidInput(f"task.config has {other[0]!r}; chains-mod takes `operations` alone")
    operations = task.config.get("operations", OPERATIONS)
    if type(operations) is not int or not 1 <= operations <= len(LABELS):
        raise InvalidInput(
            f"task.config.operations must be a whole number in 1..{len(LABELS)}, got {operations!r}"
        )
    return operations


def result(a: int, sign: str, b: int) -> int:
    """Return a ± b modulo 10."""
    return (a + b if sign == "+" else a - b) % 10


def _row(draws: random.Random, operations: int) -> dict[str, Any]:
    now = draws.randrange(10)
    question, solution = [str(now)], []
    for label in LABELS[:operations]:
        sign, operand = draws.choice("+-"), draws.randrange(10)
        question.append(f"{label}{sign}{operand}")
        after = result(now, sign, operand)
        solution.append(f"{now}{label}{sign}{operand}={after}")
        now = after
    return {
        "question": " ".join(question),
        "answer": "".join(solution),
        "last": str(now),
        "solution": solution,
    }
