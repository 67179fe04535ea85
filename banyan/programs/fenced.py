"""The program in a completion: the last fenced block of its language."""

import re

_FENCE = re.compile(
    r"^[ \t]{0,3}```[ \t]*+([\w+#.-]*+)[^\n]*+\n(.*?)(?:^[ \t]{0,3}```[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)


def last(text: str, languages: tuple[str, ...]) -> str | None:
    """Return the last fenced block of one of the languages; "" among these is a block of none.

    A block that is not closed ends with the text. None if there is no such block.
    """
    block = None
    for match in _FENCE.finditer(text):  # one after the other, so that others get their turns
        if match[1].lower() in languages:
            block = match[2]
    return block
