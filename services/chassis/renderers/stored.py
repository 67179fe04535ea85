"""Renderers without the model's folder: of its tokenizer.json and the words of the tree's spec.

They bridge alone, as the store does for answers that joined nodes rendered. Nodes have proven the
same renderer with the whole tokenizer before they used it.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

from banyan.environments.renderers import CHATML, ModelWords, RendererSpec
from services.chassis.renderers.chatml import BARE, MARKS, ChatMl
from services.chassis.renderers.family import Family
from services.chassis.renderers.make import check_version
from services.chassis.renderers.spelling import Spelling


class Bridge(Protocol):
    """The part of a renderer that needs no template."""

    def bridge(self, prompt: Sequence[int], action: Sequence[int], text: str) -> list[int] | None:
        """Return token ids between an action and what the model says next; None for none."""
        ...


def bridge_of(spec: RendererSpec, words: ModelWords, tokenizer: Tokenizer) -> Bridge:
    """Return the bridge of a tree's renderer.

    Raises InvalidInput if it cannot be made here.
    """
    check_version(spec)
    tokens = StoredTokenizer(tokenizer, words)
    spelling = Spelling(tokens)
    if spec.name == CHATML:
        return ChatMl(tokens, spelling, MARKS if words.template else BARE)
    return Family(spec, tokens, spelling)


def key_of(spec: RendererSpec, words: ModelWords) -> str:
    """Return a text that differs for renderers that bridge otherwise with one tokenizer.json."""
    return json.dumps([spec.name, spec.version, dict(spec.settings), repr(words)], sort_keys=True)


class StoredTokenizer:
    """The parts of a tokenizer of transformers that bridges use."""

    name_or_path = "the run's model"

    def __init__(self, backend: Tokenizer, words: ModelWords) -> None:
        self.backend_tokenizer = backend
        self.bos_token, self.eos_token = words.bos or None, words.eos or None
        self.unk_token_id = self._id(words.unknown)
        self.eos_token_id = self._id(words.eos)

    def _id(self, word: str) -> int | None:
        return self.backend_tokenizer.token_to_id(word) if word else None

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the ids of tokens by their spelling; that of unknown words where there is none."""
        if isinstance(tokens, str):
            found = self._id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """Return the text of tokens."""
        skip = bool(options.get("skip_special_tokens", False))
        return str(self.backend_tokenizer.decode(list(token_ids), skip_special_tokens=skip))
