"""Texts of tokens by a run's tokenizer, as the store keeps it. Pure."""

from collections.abc import Sequence
from typing import Any

MISSING = "the store keeps no tokenizer of this run, so only the text of the whole segment is known"


class TokenTexts:
    """A tokenizer that tells the text of each token on its path."""

    def __init__(self, data: bytes) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_str(data.decode())

    def whole(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def each(self, tokens: Sequence[int], before: int | None) -> list[str]:
        """Return the text of each token.

        It is what the token adds to its predecessor's text: some tokenizers write a space only
        between words. A part of a character is shown as U+FFFD.

        before: token before the first one; None at the beginning
        """
        firsts = [before, *tokens[:-1]] if tokens else []
        alone = [[] if first is None else [first] for first in firsts]
        pairs = [[*first, token] for first, token in zip(alone, tokens, strict=True)]
        decode = self._tokenizer.decode_batch
        befores = decode(alone, skip_special_tokens=False)
        boths = decode(pairs, skip_special_tokens=False)
        return [
            str(both[len(first) :]) if both.startswith(first) else str(both)
            for first, both in zip(befores, boths, strict=True)
        ]
