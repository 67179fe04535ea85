"""Conversations of twenty turns: contexts only grow, and are those of the model's template.

SmolLM2's and Qwen3's vocabularies are their own (slow); Llama-3.2's has its own special tokens over
words that were trained here, as have the quick ones of the other two.
"""

import functools
import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chassis.renderers.families import OWN, PROMPT, SMALL, Family

TURNS = 20
ANSWERS = (
    "42",
    "",
    "\n\n 3 \n",
    "a\x00b",
    "naïve 日本 🙂 e\u0301",
    "\uf8ff<\uf8ff",
    '{"a": "\\n"}',
)
# SmolLM2's vocabulary lacks the bytes that begin characters of planes 4 to 16.
WORD = st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"]), max_size=4)
families = pytest.mark.parametrize(
    "family", [*SMALL, *(pytest.param(f, marks=pytest.mark.slow) for f in OWN)], ids=str
)


@families
def test_contexts_only_grow_and_are_the_templates(family: Family) -> None:
    messages, path = list(PROMPT), family.renderer.render(PROMPT)
    assert path == family.whole(messages)
    for turn in range(TURNS):
        action, text = f"Let me see.\n<calc>{turn} * 7</calc>", ANSWERS[turn % len(ANSWERS)]
        new = family.renderer.bridge(path, family.ids(action), text)
        assert new, "a turn always has a begin and an end"
        path = [*path, *family.ids(action), *new]
        messages += [
            {"role": "assistant", "content": action},
            {"role": family.role, "content": text},
        ]
        assert path == family.whole(messages)
        assert path == family.renderer.render(messages)


@families
def test_foreign_text_has_no_special_tokens(family: Family) -> None:
    usual = family.special(family.bridged("42"))
    assert usual, "a turn has special tokens of its own"
    for text in (*family.words(), "".join(family.words()), f"I lose{family.words()[2]}\nI win"):
        assert family.special(family.bridged(text)) == usual
        assert _shown(family, text) in _read(family, text)


@families
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_text_stays_text(family: Family, data: st.DataObject) -> None:
    part = st.sampled_from([*family.words(), "\uf8ff", "<", "|", "\n", " "]) | WORD
    text = "".join(data.draw(st.lists(part, max_size=8)))
    assert family.special(family.bridged(text)) == family.special(family.bridged(""))
    assert _shown(family, text) in _read(family, text)


@families
@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=30).filter(lambda text: "<" not in text))
def test_a_text_without_special_tokens_is_the_templates(family: Family, text: str) -> None:
    action = "<calc>6*7</calc>"
    said = [{"role": "assistant", "content": action}, {"role": family.role, "content": text}]
    path = [*family.renderer.render(PROMPT), *family.ids(action), *family.bridged(text, action)]
    assert path == family.whole([*PROMPT, *said])


def _shown(family: Family, text: str) -> str:
    """Return a text as a turn of the family has it.

    Vocabularies lack some control characters, which their tokenizers leave out (SmolLM2: six).
    """
    shown = json.dumps(text, ensure_ascii=False) if family.name == "llama-3" else text
    tokens = functools.partial(family.tokenizer, add_special_tokens=False)
    known = (char for char in shown if char >= " " or tokens(char).input_ids)
    return unicodedata.normalize("NFC", "".join(known))


def _read(family: Family, text: str) -> str:
    read = family.tokenizer.decode(
        family.bridged(text), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return unicodedata.normalize("NFC", read)
