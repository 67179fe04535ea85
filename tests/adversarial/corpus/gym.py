"""`reasoning-gym`: no constant wins, no answer runs, and none that cannot be read raises.

The first row of each generator with seed 5. Verdicts that are not 0: the constant is the answer.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from banyan.recipe import Task
from services.gateway.tasks import load
from tests.adversarial.corpus.case import UNSCORABLE, Case, Expected, Subject, Table, cases
from tests.adversarial.corpus.generic import DEEP, MB, generic

EVALUATED = (
    *("binary_matrix", "countdown", "intermediate_integration", "n_queens"),
    *("polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix"),
    "string_insertion",
)
WON_BY_CONSTANTS = (
    *("coin_flip", "complex_arithmetic", "aiw", "advanced_geometry", "color_cube_rotation"),
    *("palindrome_generation", "sentence_reordering", "tsumego", "propositional_logic"),
)
RAISED = (
    "prime_factorization",
    "boxnet",
    "game_of_life",
    "rush_hour",
    "rubiks_cube",
    "graph_color",
)
RIGHT: Mapping[str, Mapping[str, Expected]] = {
    "game_of_life_halting": {"'True'": 1.0, "'true'": 1.0},
    "course_schedule": {"'False'": 1.0},
    "polynomial_equations": {"'0'": 0.5, "'0.0'": 0.5},  # one of two roots
}
GENERATORS = (*EVALUATED, *WON_BY_CONSTANTS, *RAISED, *RIGHT)
ODD: Table = {
    "a call of the system in tags": ("<answer>__import__('os').system('id')</answer>", 0.0),
    "an assignment": ("(x := 1)", 0.0),
    "a generator": ("sum(x for x in range(10**9))", 0.0),
    "a huge product": ("*".join(["9" * 100] * 100), 0.0),
    "a huge shift": ("1 << 10**9", 0.0),
    "a huge text": ("'x' * 10**10", 0.0),
    "a factorial": ("factorial(10**7)", 0.0),
    "a sum of a megabyte": ("1+" * (MB // 2) + "1", 0.0),
    "a deep sum": ("(1+" * 150 + "1" + ")" * 150, 0.0),
    "a list of a megabyte": ("[" + "0," * (MB // 2) + "0]", 0.0),
    "a deep list": ("[" * 90 + "]" * 90, 0.0),
    "deep braces": ("<answer>" + "{" * DEEP + "</answer>", 0.0),
    "every number": (" ".join(map(str, range(5000))), 0.0),
    "every letter": ("A B C D E F G H I J K L M N O P Q R S T U V W X Y Z", 0.0),
    "a fraction by nothing": ("1/0", 0.0),
    "an object of JSON": ('{"__class__": "x", "a": [1, {}]}', 0.0),
}


@cache
def row(dataset: str) -> dict[str, Any]:
    """Return the first row of a generator."""
    return load(Task(name="reasoning-gym", dataset=dataset, size=2, seed=5), Path())[0]


def every() -> Iterator[Case]:
    """Yield the cases of the scorer."""
    for dataset in GENERATORS:
        subject = Subject("reasoning-gym", {}, row(dataset))
        answer = str(subject.row["answer"])
        yield from generic(subject, RIGHT.get(dataset))
        yield from cases(subject, ODD)
        question = str(subject.row["question"])
        yield from cases(subject, {"the question again": (question, 0.0)})
        if subject.row["answer"] is not None and dataset not in ("intermediate_integration",):
            right: Table = {
                "the answer": (answer, 1.0),
                "the answer in tags": (f"x <answer>{answer}</answer>", 1.0),
                "the answer in the last tag": (f"<answer>x</answer><answer>{answer}</answer>", 1.0),
                "the answer before the last tag": (
                    f"<answer>{answer}</answer><answer>zzz</answer>",
                    0.0,
                ),
            }
            yield from cases(subject, right)
    others: Mapping[str, Mapping[str, Any]] = {
        "another row": {"question": "3 + 4", "answer": 7},
        "no such generator": {**row("countdown"), "dataset": "no_such"},
    }
    for label, fields in others.items():
        yield from cases(Subject("reasoning-gym", {}, fields), {label: ("7", UNSCORABLE)})
