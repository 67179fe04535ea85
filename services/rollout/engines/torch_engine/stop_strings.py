"""Stop strings in what a branch has sampled, found in the end of its text instead of in all of it at every token."""

from collections.abc import Sequence

import numpy as np

from services.rollout.engines.port import Tokenizer

_SLACK = 16  # characters: a decoder may strip, join or clean up a few where a text begins
_BYTES = 4  # of the longest character: of as many places in a row, one is where a character begins
_REPLACED = "\N{REPLACEMENT CHARACTER}"  # bytes that are no whole character; some decoders replace a whole run of bytes


def completed(stops: Sequence[str], tokens: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether the last token completes a stop string. Earlier tokens have completed none, or the branch had ended.

    Decodes an end of the text that begins with a whole character and is longer than the last token and a stop string
    together. What is found there is looked for in the whole text, so that a hit is one of the whole text.
    """
    longest = max(map(len, stops), default=0)
    wanted = longest + len(_text(tokens[-1:], tokenizer)) + _SLACK
    back = longest + _SLACK
    while back + _BYTES <= len(tokens):
        unfinished = 0
        for start in range(len(tokens) - back, len(tokens) - back - _BYTES, -1):
            end = _text(tokens[start:], tokenizer)
            if len(end) >= wanted and not end.startswith(_REPLACED):
                return _holds(end, stops) and _holds(_text(tokens, tokenizer), stops)
            unfinished += end.endswith(_REPLACED)
        if unfinished == _BYTES and not any(_REPLACED in stop for stop in stops):
            return False  # the last character is not whole yet, and no stop string ends with half of one
        back *= 2
    return _holds(_text(tokens, tokenizer), stops)


def _holds(text: str, stops: Sequence[str]) -> bool:
    return any(stop in text for stop in stops)


def _text(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(np.array(tokens, np.int32))
