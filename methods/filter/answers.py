"""What a completion's answer is, as a text that is equal for equal answers; None where it gives none."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from methods.filter import number

_OPEN, _CLOSE = "<answer>", "</answer>"
_PLAIN = re.compile(
    r"([-+\u2212]?)([0-9]{0,64}(?:\.[0-9]{1,64})?)(?:\s*/\s*([0-9]{1,64}))?", re.ASCII
)


def number_of(completion: str, take: str) -> str | None:
    """The number that the scorer `number` would compare; 12 and 12.0 are one answer."""
    found = number.given(completion, take)
    if found is None:
        return None
    return str(found.normalize() + 0)  # no trailing zeros, and no sign of a zero


def tag_of(completion: str, take: str) -> str | None:
    """What stands in the last <answer> tag, found in linear time: a model may write thousands that never close."""
    last, at = None, 0
    while (start := completion.find(_OPEN, at)) >= 0 and (
        end := completion.find(_CLOSE, start + len(_OPEN))
    ) >= 0:
        last, at = completion[start + len(_OPEN) : end], end + len(_CLOSE)
    return simplified(last.strip()) or None if last is not None else None


def text_of(completion: str, take: str) -> str | None:
    """All of it."""
    return simplified(completion.strip()) or None


def simplified(text: str) -> str:
    """Numbers and plain fractions in lowest terms, so that 1/2, 2/4 and 0.50 are one answer; any other text as it is.

    ECHO (card 1) simplifies expressions. No more than this is done here: what a model writes as an expression may take an
    algebra system any time.
    """
    found = _PLAIN.fullmatch(text)
    if found is None or not found[2] or (found[3] and not int(found[3])):
        return text
    value = Fraction(found[2]) / Fraction(found[3] or 1)
    return str(-value if found[1] in ("-", "\u2212") else value)


EXTRACTORS: Mapping[str, Callable[[str, str], str | None]] = {
    "number": number_of,
    "tag": tag_of,
    "text": text_of,
}
