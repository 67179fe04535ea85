"""Text that can be seen, a helper of scorers: what shows nothing says nothing, and earns nothing.

Seen are letters, numbers, punctuation and symbols. White space, control characters, invisible
marks, accents without a letter, and the few letters and symbols that are blank are not.
"""

from unicodedata import category

_KINDS = "LNPS"
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\U0001d159")


def seen(text: str) -> bool:
    """Return whether a text has a character that can be seen."""
    return any(category(letter)[0] in _KINDS and letter not in _BLANK for letter in text)
