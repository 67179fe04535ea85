"""Text that a terminal shows but never obeys.

Models, foreign nodes and dead letters may contain anything: escape sequences that rename windows or
hide lines, bytes of the C1 set that some terminals take for the same, marks that turn the direction
of a line (Boucher, Anderson 2021, arXiv 2111.00169). Each such character is replaced by a visible
one of one cell, so lines keep their lengths.
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
_SURROGATES = range(0xD800, 0xE000)  # halves of a UTF-16 pair, which UTF-8 cannot encode
_UNKNOWN = "�"

_C0 = {code: chr(0x2400 + code) for code in range(0x20) if code not in _KEPT} | {0x7F: "␡"}
_OTHERS: Iterable[int] = (*range(0x80, 0xA0), *_BIDI, *_BREAKS, *_HIDDEN, *_SURROGATES)
_SHOWN = _C0 | dict.fromkeys(_OTHERS, _UNKNOWN)
_OBEYED = re.compile("[" + "".join(re.escape(chr(code)) for code in sorted(_SHOWN)) + "]")


def printable(text: str) -> str:
    """Replace the characters that a terminal obeys.

    C0 controls except tab and newline become control pictures; C1, bidi marks and such U+FFFD.
    """
    return text.translate(_SHOWN) if _OBEYED.search(text) else text


def printable_json(line: str) -> str:
    """Escape the same characters in JSON text, where they occur only in strings.

    The text reads back as the value that was written.
    """
    return _OBEYED.sub(lambda match: _escaped(ord(match[0])), line)


def textual(text: str) -> bool:
    """Return whether UTF-8 can encode a text.

    Python represents bytes of another encoding by half characters, which UTF-8 cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encodable(text: str) -> str:
    """Replace the half characters of a text, which UTF-8 and so no message can carry, by U+FFFD."""
    return text if textual(text) else text.translate(dict.fromkeys(_SURROGATES, _UNKNOWN))


class PrintableFormatter(logging.Formatter):
    """Formatter of log lines that quote models, joined nodes and clients."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record and its traceback."""
        return printable(super().format(record))


def _escaped(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + ((code - 0x10000) >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
