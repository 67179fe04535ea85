"""What a completion's answer is, as a text that is equal for equal answers; None where it gives none."""

import re
from collections.abc import Callable, Mapping

from services.verifier.filter import number

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def number_of(completion: str, take: str) -> str | None:
    """The number that the scorer `number` would compare; 12 and 12.0 are one answer."""
    found = number.given(completion, take)
    if found is None:
        return None
    return str(found.normalize() + 0)  # no trailing zeros, and no sign of a zero


def tag_of(completion: str, take: str) -> str | None:
    """What stands in the last <answer> tag."""
    found = _TAG.findall(completion)
    return (found[-1].strip() or None) if found else None


def text_of(completion: str, take: str) -> str | None:
    """All of it."""
    return completion.strip() or None


EXTRACTORS: Mapping[str, Callable[[str, str], str | None]] = {"number": number_of, "tag": tag_of, "text": text_of}
