"""Signatures of tools: which arguments fit which types, and what models are told of them."""

import json
from typing import Any, Literal

import pytest

from banyan.environments.signature import Signature


def find(
    word: str,
    lines: list[int],
    sizes: dict[str, float],
    mode: Literal["all", 1] = "all",
    most: int | None = None,
) -> str:
    """Find a word
    in lines.

    More of it.
    """
    return word


FIND = Signature.of(find)
GOOD: dict[str, Any] = {"word": "a", "lines": [1, 2], "sizes": {"b": 1, "c": 0.5}}


@pytest.mark.parametrize("more", [{}, {"mode": 1}, {"most": 3}, {"most": None}, {"lines": []}])
def test_arguments_that_fit(more: dict[str, Any]) -> None:
    assert FIND.checked(GOOD | more) == GOOD | more


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("word", 1),
        ("lines", [1, "2"]),
        ("lines", ["1", 2]),
        ("lines", [True]),
        ("lines", {"1": 1}),
        ("sizes", {"b": "1", "c": 2.0}),
        ("sizes", {"b": True}),
        ("sizes", [1.0]),
        ("mode", True),  # equal to 1, and none
        ("mode", 1.0),
        ("mode", "some"),
        ("most", 1.5),
        ("most", False),
    ],
)
def test_arguments_that_do_not_fit_are_named(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"argument '{argument}' must be"):
        FIND.checked(GOOD | {argument: value})


@pytest.mark.parametrize("needed", GOOD)
def test_only_what_has_a_default_may_be_missing(needed: str) -> None:
    with pytest.raises(ValueError, match=f"find needs the argument '{needed}'"):
        FIND.checked({key: value for key, value in GOOD.items() if key != needed})
    with pytest.raises(ValueError, match="find has no argument 'x'; it has word, lines"):
        FIND.checked(GOOD | {"x": 1})
    with pytest.raises(ValueError, match=r'arguments must be an object, got \["größe", null\]'):
        FIND.checked(["größe", None])


def test_models_are_told_the_types_and_what_is_required() -> None:
    told = FIND.schema()
    assert (
        json.loads(json.dumps(told))
        == told
        == {
            "type": "function",
            "function": {
                "name": "find",
                "description": "Find a word in lines.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "word": {"type": "string"},
                        "lines": {"type": "array", "items": {"type": "integer"}},
                        "sizes": {"type": "object", "additionalProperties": {"type": "number"}},
                        "mode": {"enum": ["all", 1]},
                        "most": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    },
                    "required": ["word", "lines", "sizes"],
                },
            },
        }
    )
