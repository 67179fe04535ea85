"""Values of messages in plain Python: names of enums, times, hex ids."""

import datetime
from typing import Any

from banyan.errors import InvalidInput

_LEAST, _MOST = 4, 32  # bytes of an id that is given to find one


def name_of(enum: Any, value: int) -> str:
    """Return the name of an enum's value without the enum's own: POLICY, not SEGMENT_KIND_POLICY.

    A value of a newer version is its number as text.
    """
    try:
        name: str = enum.Name(value)
    except ValueError:
        return str(value)
    first: str = enum.Name(0)
    return name.removeprefix(first.removesuffix("UNSPECIFIED"))


def value_of(enum: Any, name: str, what: str) -> int:
    """Return the value of an enum by its short name, in any case.

    Raises InvalidInput with the names that exist.
    """
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    known = [key.removeprefix(prefix) for key in enum.keys()[1:]]
    if name.upper() not in known:
        raise InvalidInput(f"{what} {name!r} is none of {', '.join(known)}")
    return int(enum.Value(prefix + name.upper()))


def when(unix_ms: int) -> datetime.datetime | None:
    """Return a time in UTC; None for 0."""
    if not unix_ms:
        return None
    return datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC)


def id_bytes(text: str, what: str) -> bytes:
    """Return the bytes of a hex id, or of its beginning; an odd last digit is left out.

    Raises InvalidInput for anything but 8 to 64 hex digits.
    """
    try:
        value = bytes.fromhex(text if len(text) % 2 == 0 else text[:-1])
    except (TypeError, ValueError):
        raise InvalidInput(f"{what} {text!r} is not an id: ids are hex digits") from None
    if not _LEAST <= len(value) <= _MOST:
        raise InvalidInput(f"{what} {text!r} must have 8 to 64 hex digits")
    return value


def shortened(text: str, most: int = 40) -> str:
    """Return a text as one line of at most `most` characters, for representations."""
    line = repr(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"
