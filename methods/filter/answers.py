"""Answers in completions, a helper of scorers: the text that equal answers share."""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from methods.filter import number
from methods.filter.seen import seen

_PLAIN = re.compile(
    r"([-+\u2212]?)([0-9]{0,64}(?:\.[0-9]{1,64})?)(?:\s*/\s*([0-9]{1,64}))?", re.ASCII
)


def number_of(completion: str, take: str) -> str | None:
    """Return the number that the scorer `number` would compare; 12 and 12.0 are one answer."""
    number_given = number.given(completion, take)
    if number_given is None:
        return None
    return str(number_given.normalize() + 0)  # no trailing zeros, and no sign of a zero


def tag_of(completion: str, take: str) -> str | None:
    """Return the content of the last <answer> tag, simplified."""
    last = tagged(completion)
    return None if last is None else text_of(last, take)


def tagged(completion: str, tag: str = "answer") -> str | None:
    """Return the content of the last closed tag of a kind; None without any.

    The search takes linear time: a model may write thousands of tags that never close.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    last, at = None, 0
    while (start := completion.find(opening, at)) >= 0 and (
        end := completion.find(closing, start + len(opening))
    ) >= 0:
        last, at = completion[start + len(opening) : end], end + len(closing)
    return last


def text_of(completion: str, take: str) -> str | None:
    """Return the whole completion; None if nothing of it can be seen."""
    return simplified(completion.strip()) if seen(completion) else None


def simplified(text: str) -> str:
    """Return numbers and plain fractions in lowest terms, any other text as it is.

    So 1/2, 2/4 and 0.50 are one answer. ECHO (arXiv 2602.02150) simplifies expressions; that is
    left out, as an algebra system may take any time on an expression that a model wrote.
    """
    match = _PLAIN.fullmatch(text)
    if match is None or not match[2] or (match[3] and not int(match[3])):
        return text
    value = Fraction(match[2]) / Fraction(match[3] or 1)
    return str(-value if match[1] in ("-", "\u2212") else value)


EXTRACTORS: Mapping[str, Callable[[str, str], str | None]] = {
    "number": number_of,
    "tag": tag_of,
    "text": text_of,
}


def check(extract: str, take: str) -> None:
    """Raise ValueError unless both settings are known."""
    if extract not in EXTRACTORS:
        raise ValueError(f"extract must be one of {', '.join(EXTRACTORS)}, got {extract!r}")
    if take not in ("only", "last"):
        raise ValueError(f"take must be only or last, got {take!r}")


def of(completions: Sequence[str], extract: str, take: str) -> list[str | None]:
    """Return the answer of each completion; None for one without."""
    return [EXTRACTORS[extract](completion, take) for completion in completions]
