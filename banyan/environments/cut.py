"""The part of a long answer that a path gets: its first and last halves around a mark."""

_MARK = "\n[…]\n"


def cut(text: str, most: int) -> str:
    """Return the text, or at most `most` characters of it."""
    if len(text) <= most:
        return text
    kept = max(0, most - len(_MARK))
    first = (kept + 1) // 2
    return (text[:first] + _MARK + text[len(text) - (kept - first) :])[:most]
