"""The tokens between an action and what the model says next, for templates of ChatML's form.

Other templates are refused by name: some write a turn in another way than they read it, so that a
context would not only grow.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from banyan.errors import InvalidInput

_HEAD = "<|im_end|>\n<|im_start|>user\n"
_TAIL = "<|im_end|>\n<|im_start|>assistant\n"
_PROBE = ("first question", "first answer", "second question")


def around_answer(tokenizer: Any) -> tuple[str, str]:
    """Return the text before and behind an answer, from the end of an action on.

    Raises InvalidInput unless the template of a transformers tokenizer writes turns as ChatML.
    """
    if tokenizer.chat_template is None:
        return "\n", "\n"
    messages = [
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant", "user"), _PROBE, strict=True)
    ]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    if not text.endswith(_PROBE[1] + _HEAD + _PROBE[2] + _TAIL):
        raise InvalidInput(
            f"the chat template of {tokenizer.name_or_path} writes turns in another way than"
            " ChatML; actions can be answered for ChatML alone"
        )
    return _HEAD, _TAIL


def answer_tokens(
    around: tuple[str, str],
    text: str,
    template: Callable[[str], Sequence[int]],
    plain: Callable[[str], Iterable[int]],
) -> list[int]:
    """Return the tokens of an answer between two turns.

    template: tokens of a text with special tokens in it.
    plain: tokens of a text that has none, whatever it spells.
    """
    head, tail = around
    return [*template(head), *plain(text), *template(tail)]
