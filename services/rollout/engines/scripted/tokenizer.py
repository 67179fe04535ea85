"""The scripted engine's tokenizer: one token per character, so that its texts mean something and need no model.

What characters mean, for semantic signals: a letter is the same in small and large (cosine 1), + and - are opposed (-1), and
any other two have nothing to do with each other (0).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from banyan.segment import IntTokens

CHARACTERS = "0123456789 +-*=.,?\nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
END = 0  # the end token; characters follow from 1
_TEXTS = ("", *CHARACTERS)


def _embeddings() -> npt.NDArray[np.float64]:
    """A row of length 1 for each token."""
    rows = np.eye(1 + len(CHARACTERS))
    for character in CHARACTERS:
        if character.isupper():
            rows[1 + CHARACTERS.index(character)] = rows[1 + CHARACTERS.index(character.lower())]
    rows[1 + CHARACTERS.index("-")] = -rows[1 + CHARACTERS.index("+")]
    return rows


EMBEDDINGS = _embeddings()


class Alphabet:
    """Token 0 ends; token i is the i-th character. What is not in the alphabet becomes a question mark."""

    eos = frozenset({END})
    size = len(CHARACTERS) + 1

    def encode(self, text: str) -> IntTokens:
        """Tokens of a text."""
        return np.array(
            [1 + (CHARACTERS.find(c) if c in CHARACTERS else CHARACTERS.index("?")) for c in text],
            np.int32,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        """The messages, a line end after each."""
        return self.encode("".join(m["content"] + "\n" for m in messages))

    def decode(self, tokens: IntTokens) -> str:
        """The characters, without the end token."""
        return "".join(map(_TEXTS.__getitem__, tokens.tolist()))
