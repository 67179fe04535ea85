"""Turns of ChatML's form, for any model whose own template writes them.

Other templates are refused by name: some write a turn in another way than they read it, so that a
context would not only grow.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from banyan.errors import InvalidInput
from services.chassis.renderers.port import Said
from services.chassis.renderers.spelling import Spelling

_END = "<|im_end|>"
_HEAD = f"{_END}\n<|im_start|>user\n"
_TAIL = f"{_END}\n<|im_start|>assistant\n"
_PROBE = ("first question", "first answer", "second question")
Marks = tuple[str, str]
MARKS: Marks = (_HEAD, _TAIL)
"""Text before and behind an answer, from the end of an action on."""
BARE: Marks = ("\n", "\n")
"""The same for a model without a template."""


class ChatMl:
    """Answers as turns of the user; lines where the model has no template.

    tokenizer: of transformers.
    marks: text around an answer.
    """

    def __init__(self, tokenizer: Any, spelling: Spelling, marks: Marks) -> None:
        self._inner, self._spelling = tokenizer, spelling
        self._head, self._tail = marks

    @property
    def stops(self) -> frozenset[int]:
        """Tokens that end a turn of the model."""
        if self._inner.chat_template is None:
            return frozenset({self._inner.eos_token_id})
        return frozenset(self._spelling.encode(_END))

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return token ids of a conversation, up to where the model's answer begins."""
        return chat_tokens(self._inner, messages)

    def parse(self, prompt: Sequence[int], action: Sequence[int]) -> Said:
        """Read what the model said up to the end of its turn; the form marks no thoughts."""
        end = next((at for at, id_ in enumerate(action) if id_ in self.stops), len(action))
        return Said(str(self._inner.decode(list(action[:end]), skip_special_tokens=True)))

    def bridge(self, prompt: Sequence[int], action: Sequence[int], text: str) -> list[int]:
        """Return token ids between an action and what the model says next; they always exist."""
        return self._spelling.encode(self._head + self._spelling.foreign(text) + self._tail)


def chat_tokens(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return token ids of a conversation by the tokenizer's own template, up to where the answer
    begins; without a template, messages are plain text joined by line ends.
    """
    bare = tokenizer.chat_template is None
    if bare:
        text = "\n".join(m["content"] for m in messages) + "\n"
    else:
        turns = [dict(m) for m in messages]
        text = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    ids: list[int] = tokenizer(text, add_special_tokens=bare)["input_ids"]
    return ids


def around(tokenizer: Any) -> Marks:
    """Return the text before and behind an answer, from the end of an action on.

    Raises InvalidInput unless the template of a transformers tokenizer writes turns as ChatML.
    """
    if tokenizer.chat_template is None:
        return BARE
    messages = [
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant", "user"), _PROBE, strict=True)
    ]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    if not text.endswith(_PROBE[1] + _HEAD + _PROBE[2] + _TAIL):
        raise InvalidInput(
            f"the chat template of {tokenizer.name_or_path} writes turns in another way than"
            " ChatML; if the model is of a family that environment.renderer knows, name it there"
        )
    return MARKS
