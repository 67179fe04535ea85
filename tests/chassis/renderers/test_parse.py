"""What a model said, read by the form of its family: content, thoughts and calls."""

import pytest

from services.chassis.renderers.port import Said
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer, CharacterTurns
from tests.chassis.renderers.families import OWN, PROMPT, SMALL, Family

CALL = '{"name": "price", "arguments": {"item": "tea"}}'
LLAMAS = '{"name": "price", "parameters": {"item": "tea"}}'
families = pytest.mark.parametrize(
    "family", [*SMALL, *(pytest.param(own, marks=pytest.mark.slow) for own in OWN)], ids=str
)


def said(family: Family, text: str) -> Said:
    return family.renderer.parse(family.renderer.render(PROMPT), family.ids(text))


def end_of(family: Family) -> str:
    return "<|eot_id|>" if family.name == "llama-3" else "<|im_end|>"


@families
def test_a_turn_is_read_up_to_its_end(family: Family) -> None:
    assert said(family, "It is 42.") == Said("It is 42.")
    assert said(family, f"It is 42.{end_of(family)}") == Said("It is 42.")
    assert said(family, f"It is{end_of(family)} 42.") == Said("It is")
    assert said(family, "<calc>6*7</calc>") == Said("<calc>6*7</calc>"), "an action of ours"


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        (
            SMALL[1],
            f"<think>\nHm.\n</think>\n\nSo:\n<tool_call>\n{CALL}\n</tool_call>",
            Said("So:", "Hm.", (CALL,)),
        ),
        (SMALL[1], "<tool_call>\n{nothing\n</tool_call>", Said("", "", ("{nothing",))),
        (SMALL[2], LLAMAS, Said("", "", (LLAMAS,))),
    ],
    ids=str,
)
def test_thoughts_and_calls_of_a_family_are_told_apart(
    family: Family, text: str, expected: Said
) -> None:
    read = said(family, text + end_of(family))
    assert (read.content.strip(), read.thoughts, read.calls) == (
        expected.content,
        expected.thoughts,
        expected.calls,
    )


def test_characters_are_their_own_content() -> None:
    ids = CharacterTokenizer().encode("=6*7?").tolist()
    assert CharacterTurns().parse([], ids) == Said("=6*7?")
