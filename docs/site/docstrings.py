"""Lists out of docstrings: the house style names fields one a line, `name: meaning`."""

import re
from collections.abc import Iterator
from typing import Any

from griffe import Extension, Object

from docs.site import links

_FIELD = re.compile(r"(\*{0,2}[A-Za-z_][\w.]*(?:, [A-Za-z_][\w.]*)*): (\S.*)")


def listed(text: str) -> str:
    """Return a docstring as Markdown, in which fields are items of a list."""
    return links.bracketed("\n".join(_lines(text)))


def _lines(text: str) -> Iterator[str]:
    within = False  # a field, which may go on in the next line
    for line in text.splitlines():
        match = _FIELD.fullmatch(line)
        if match and not line.startswith(("http", "Raises", "Raise")):
            if not within:
                yield ""
            yield f"- `{match[1]}`: {match[2]}"
            within = True
        else:
            if within and line.strip():
                line = f"  {line.strip()}"
            within = within and bool(line.strip())
            yield line


class Fields(Extension):
    """Extension of the builder's reader of sources."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
