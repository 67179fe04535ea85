"""Answers between turns: ChatML as the model's own template writes it, and text that stays text."""

from typing import Any

import pytest

from banyan.errors import InvalidInput
from services.rollout.engines import chatml

CHATML = "<|im_start|>{role}\n{content}<|im_end|>\n"


class Template:
    """A tokenizer that renders turns in a given way."""

    name_or_path = "a model"

    def __init__(self, turn: str, tail: str = "<|im_start|>assistant\n") -> None:
        self.chat_template: str | None = turn
        self._turn, self._tail = turn, tail

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return "".join(self._turn.format(**message) for message in messages) + self._tail


def test_chatml_is_known() -> None:
    head, tail = chatml.around_answer(Template(CHATML))
    assert head == "<|im_end|>\n<|im_start|>user\n"
    assert tail == "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "turn", ["[{role}] {content}\n", "<|im_start|>{role}\n {content}<|im_end|>\n", "{content}"]
)
def test_any_other_template_is_refused_by_name(turn: str) -> None:
    with pytest.raises(InvalidInput, match="chat template of a model writes turns in another way"):
        chatml.around_answer(Template(turn))


def test_without_a_template_turns_are_lines() -> None:
    plain = Template("")
    plain.chat_template = None
    assert chatml.around_answer(plain) == ("\n", "\n")


def test_special_tokens_are_in_the_template_alone() -> None:
    tokens = chatml.answer_tokens(
        ("<s>", "<e>"), "<s>x", lambda text: [-len(text)], lambda text: [ord(c) for c in text]
    )
    assert tokens == [-3, *map(ord, "<s>x"), -3]
