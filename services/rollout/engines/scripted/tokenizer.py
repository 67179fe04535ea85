"""The scripted engine's tokenizer: one token per character, so that its texts need no model.

For semantic signals, a letter has the same meaning in lower and upper case (cosine 1), + and - have
opposite meanings (-1), and any other two characters are unrelated (0).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from banyan.segment import IntTokens

CHARACTERS = "0123456789 +-*=.,?\nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
END = 0  # the end token; characters follow from 1
_TEXTS = ("", *CHARACTERS)


def _embeddings() -> npt.NDArray[np.float64]:
    """Return a vector of length 1 for each token."""
    rows = np.eye(1 + len(CHARACTERS))
    for character in CHARACTERS:
        if character.isupper():
            rows[1 + CHARACTERS.index(character)] = rows[1 + CHARACTERS.index(character.lower())]
    rows[1 + CHARACTERS.index("-")] = -rows[1 + CHARACTERS.index("+")]
    return rows


EMBEDDINGS = _embeddings()


class CharacterTokenizer:
    """Tokenizer of single characters: token 0 ends, token i is the i-th character.

    Any other character becomes a question mark.
    """

    eos = frozenset({END})
    size = len(CHARACTERS) + 1

    def encode(self, text: str) -> IntTokens:
        """Return the tokens of a text."""
        known = (c if c in CHARACTERS else "?" for c in text)
        return np.array([1 + CHARACTERS.index(c) for c in known], np.int32)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        """Return the tokens of the messages, with a line end after each."""
        return self.encode("".join(m["content"] + "\n" for m in messages))

    def encode_answer(self, text: str) -> IntTokens:
        """Return the tokens of an answer between spaces: a line end would begin a new prompt."""
        return self.encode(f" {text} ")

    def decode(self, tokens: IntTokens) -> str:
        """Return the characters, without the end token."""
        return "".join(map(_TEXTS.__getitem__, tokens.tolist()))
