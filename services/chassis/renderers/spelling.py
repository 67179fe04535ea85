"""Token ids of text that is partly a template's and partly foreign.

Only the template's part has special tokens. Foreign text may spell them; it is then broken up by a
mark, which comes out again where special tokens are not read any more. So template and foreign text
are split into words together, as the template's own rendering is.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer

from banyan.errors import InvalidInput

_MARK = "\uf8ff"  # of the private use area; one that a text has already is doubled


class Spelling:
    """The tokens of texts in which `foreign` ones stand.

    tokenizer: of transformers, with a fast backend.

    Attributes:
    special: ids of tokens that no foreign text may have: all that were added to the vocabulary, but
        for blanks and for the token of words that are not in it.

    Raises InvalidInput if the tokenizer cannot write special tokens as text, or takes blanks beside
    one for a part of it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._name = tokenizer.name_or_path
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise InvalidInput(
                f"the tokenizer of {self._name} is a {type(tokenizer).__name__}; actions can be"
                " answered only for one with a tokenizer.json"
            )
        added = backend.get_added_tokens_decoder()
        self._ids = {token.content: id_ for id_, token in added.items()}
        unknown = _unknown(tokenizer, backend)
        special = {w: id_ for w, id_ in self._ids.items() if w.strip() and w != unknown}
        self._special = special
        self.special = frozenset(special.values())
        self._plain = _without_added(backend)
        self._split = re.compile(f"({_any(self._ids)})")
        self._begin = re.compile(f"(?=(?:{_any(special)}))(.)", re.DOTALL)
        self._check(added.values())

    def own(self, text: str) -> str:
        """Return a text whose special tokens are meant, for `encode`."""
        return text.replace(_MARK, 2 * _MARK)

    def foreign(self, text: str) -> str:
        """Return a text in which nothing is a special token, for `encode`."""
        return self._begin.sub(rf"\1{_MARK}", self.own(text))

    def encode(self, text: str) -> list[int]:
        """Return token ids of a template's text, in which own and foreign texts stand."""
        ids: list[int] = []
        for place, part in enumerate(self._split.split(text)):
            ids += [self._ids[part]] if place % 2 else self._words(part)
        return ids

    def _words(self, text: str) -> list[int]:
        bare = re.sub(f"{_MARK}({_MARK}?)", r"\1", text)
        ids: list[int] = self._plain.encode(bare, add_special_tokens=False).ids
        return ids

    def _check(self, added: Iterable[AddedToken]) -> None:
        for token in added:
            word = token.content
            if token.lstrip or token.rstrip or token.single_word:
                problem = f"takes blanks beside {word!r} for a part of it"
            elif word in self._special and not self.special.isdisjoint(self._words(word)):
                problem = f"cannot write {word!r} as text, so an answer could forge a turn"
            else:
                continue
            raise InvalidInput(
                f"the tokenizer of {self._name} {problem}; actions are not answered for this model"
            )


def _unknown(tokenizer: Any, backend: Tokenizer) -> str | None:
    """Return the token that the vocabulary has for all other words, unless it means more."""
    unknown: str | None = getattr(backend.model, "unk_token", None)
    return None if unknown in (tokenizer.eos_token, tokenizer.bos_token) else unknown


def _any(words: Collection[str]) -> str:
    """Return the expression of the longest of some words; of none, one that fits nowhere."""
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "(?!)"


def _without_added(backend: Tokenizer) -> Tokenizer:
    """Return a tokenizer of the same words that knows no added tokens."""
    plain = Tokenizer(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    return plain
