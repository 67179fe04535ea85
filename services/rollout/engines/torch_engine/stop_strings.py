"""Stop strings in a branch's sampled text, found at its end rather than by decoding all of it."""

from collections.abc import Sequence

import numpy as np

from services.rollout.engines.port import Tokenizer

# Characters that a decoder may strip, join or clean up where a text begins.
_SLACK = 16
# Bytes of the longest character: a character begins at one of as many consecutive places.
_MAX_CHARACTER_BYTES = 4
# Stands for bytes that form no whole character; some decoders replace a whole run of bytes.
_REPLACED = "\N{REPLACEMENT CHARACTER}"


def completed(stops: Sequence[str], tokens: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Return whether the last token completes a stop string.

    Earlier tokens have completed none, or the branch would have ended. Decodes an end of the text
    that begins with a whole character and is longer than the last token and a stop string together.
    A hit there is confirmed in the whole text.
    """
    longest = max(map(len, stops), default=0)
    wanted = longest + len(_text(tokens[-1:], tokenizer)) + _SLACK
    back = longest + _SLACK
    while back + _MAX_CHARACTER_BYTES <= len(tokens):
        unfinished = 0
        last = len(tokens) - back
        for start in range(last, last - _MAX_CHARACTER_BYTES, -1):
            end = _text(tokens[start:], tokenizer)
            if len(end) >= wanted and not end.startswith(_REPLACED):
                return _contains(end, stops) and _contains(_text(tokens, tokenizer), stops)
            unfinished += end.endswith(_REPLACED)
        if unfinished == _MAX_CHARACTER_BYTES and not any(_REPLACED in stop for stop in stops):
            # The last character is incomplete, and no stop string ends with half of one.
            return False
        back *= 2
    return _contains(_text(tokens, tokenizer), stops)


def _contains(text: str, stops: Sequence[str]) -> bool:
    return any(stop in text for stop in stops)


def _text(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(np.array(tokens, np.int32))
