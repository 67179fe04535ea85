"""Foreign texts in a prompt, each between two lines with a mark that it cannot contain."""

import json
import re
from collections.abc import Mapping

from banyan.digest import blake, packed

_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LONGEST = 65_536  # characters of a value that is no text


def names(template: str) -> list[str]:
    """Return the names in braces of a template, in order."""
    return _FIELD.findall(template)


def filled(template: str, values: Mapping[str, object]) -> tuple[str, str]:
    """Return a template with its values between marks, and the mark.

    Names in braces within a value are text. Raises KeyError for a name without a value.
    """
    texts = {name: _text(value) for name, value in values.items()}
    fence = _fence(texts)
    return _FIELD.sub(lambda hit: f"\n{fence}\n{texts[hit[1]]}\n{fence}\n", template), fence


def _text(value: object) -> str:
    """Return a value as text that a message can carry."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)[:_LONGEST]
    except (TypeError, ValueError, RecursionError):  # thousands of digits, or very deep
        text = f"a {type(value).__name__} that cannot be shown"
    return text.encode("utf-8", "replace").decode()


def _fence(texts: Mapping[str, str]) -> str:
    """Return a line that stands in none of the texts: a text cannot hold its own digest."""
    seed = blake(*(packed(part.encode()) for pair in sorted(texts.items()) for part in pair))
    while (fence := f"[[{seed.hex()[:24]}]]") and any(fence in text for text in texts.values()):
        seed = blake(seed)
    return fence
