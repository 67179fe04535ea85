"""The scripted engine's tokenizer: one token per character, so that its texts need no model.

For semantic signals, a letter has the same meaning in lower and upper case (cosine 1), + and - have
opposite meanings (-1), and any other two characters are unrelated (0).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from banyan.environments.renderers import RendererSpec
from banyan.segment import IntTokens
from services.chassis.renderers.port import Said

CHARACTERS = '0123456789 +-*=.,?\nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ{}":'
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

    def renderer(self, spec: RendererSpec) -> "CharacterTurns":
        """Return the turns of characters, whatever the spec: they are no model's."""
        return CharacterTurns()

    def decode(self, tokens: IntTokens) -> str:
        """Return the characters, without the end token."""
        return "".join(map(_TEXTS.__getitem__, tokens.tolist()))


class CharacterTurns:
    """Turns of characters: answers between spaces, since a line end begins a new prompt."""

    stops = CharacterTokenizer.eos

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of the messages."""
        return [int(token) for token in CharacterTokenizer().encode_chat(messages)]

    def parse(self, prompt: Sequence[int], action: Sequence[int]) -> Said:
        """Read the characters."""
        return Said(CharacterTokenizer().decode(np.array(action, np.int32)))

    def bridge(self, prompt: Sequence[int], action: Sequence[int], text: str) -> list[int] | None:
        """Return the tokens of an answer."""
        return [int(token) for token in CharacterTokenizer().encode(f" {text} ")]
