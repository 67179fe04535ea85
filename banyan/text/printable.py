"""Text that a terminal shows and never obeys. Pure.

Models, nodes of strangers and dead letters say what they like: escape sequences that rename windows or hide lines, bytes of
the C1 set that some terminals take for the same, marks that turn the direction of a line (Boucher, Anderson 2021, arXiv
2111.00169). Each such character becomes one that is visible and one cell wide, so lines keep their lengths.
"""

import logging
import re
from collections.abc import Iterable

_KEPT = (0x09, 0x0A)  # tabs and ends of lines
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_BREAKS = (0x2028, 0x2029)  # of lines and paragraphs
_HIDDEN = (
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)  # byte order mark, annotations, tags
_SURROGATES = range(0xD800, 0xE000)  # half a character: no encoding has it
_UNKNOWN = "�"

_C0 = {code: chr(0x2400 + code) for code in range(0x20) if code not in _KEPT} | {0x7F: "␡"}
_OTHERS: Iterable[int] = (*range(0x80, 0xA0), *_BIDI, *_BREAKS, *_HIDDEN, *_SURROGATES)
_SHOWN = _C0 | dict.fromkeys(_OTHERS, _UNKNOWN)
_OBEYED = re.compile("[" + "".join(re.escape(chr(code)) for code in sorted(_SHOWN)) + "]")


def printable(text: str) -> str:
    """Replace what a terminal obeys: C0 except tab and newline by control pictures; C1, bidi marks and such by U+FFFD."""
    return text.translate(_SHOWN) if _OBEYED.search(text) else text


def printable_json(line: str) -> str:
    """Escape the same characters in JSON text, where they stand in strings alone: what is read back is what was written."""
    return _OBEYED.sub(lambda found: _escaped(ord(found[0])), line)


def textual(text: str) -> bool:
    """Whether UTF-8 has all of a text: it holds no half characters, such as Python makes of bytes in another encoding."""
    return not any(0xD800 <= ord(char) < 0xE000 for char in text)


class PrintableFormatter(logging.Formatter):
    """Log lines that a terminal shows and never obeys: they quote models, joined nodes and clients."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record and its traceback."""
        return printable(super().format(record))


def _escaped(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + ((code - 0x10000) >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
