"""A tokenizer of whole words with ChatML's template, for the words of some texts."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

START, END, UNKNOWN = "<|im_start|>", "<|im_end|>", "<unk>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PARTS = re.compile(r"\w+|[^\w\s]+")  # as the tokenizer parts a text; white space is none


def save(folder: Path, texts: Iterable[str]) -> Any:
    """Write the tokenizer to a folder; return it as transformers loads it."""
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for text in texts for word in _PARTS.findall(text.lower())})
    words = [UNKNOWN, START, END, "system", "user", "assistant", *words]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=UNKNOWN))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens([AddedToken(mark, normalized=False) for mark in (START, END)])
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(
        tokenizer_object=inner, unk_token=UNKNOWN, eos_token=END, chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def conversation(prompt: str, turns: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return a path as chat messages."""
    messages = [{"role": "user", "content": prompt}]
    for action, answer in turns:
        messages += [
            {"role": "assistant", "content": action},
            {"role": "user", "content": answer},
        ]
    return messages
