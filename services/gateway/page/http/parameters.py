"""Parameters of requests, each with its bounds, and the cursors of pages.

A wrong value is an error that names it and what is allowed. The same declarations make the OpenAPI
document.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from banyan.errors import InvalidInput
from banyan.text.printable import textual

MOST_ID = 200  # characters of a run's id
_SHOWN = 80  # characters of a wrong value in a message
_HEX = re.compile(r"[0-9a-f]+\Z")
LAST = 2**63 - 1  # largest number of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Declaration of a parameter.

    name: as in the request
    about: meaning, for the OpenAPI document
    kind: integer, choice, hex, text, flag or cursor
    default: value if it is missing
    least, most: bounds of an integer, or of the digits or characters of another kind
    choices: allowed words
    """

    name: str
    about: str
    kind: str = "text"
    default: Any = None
    least: int = 0
    most: int = MOST_ID
    choices: Sequence[str] = ()

    def read(self, raw: str | None) -> Any:
        """Return the value of a text. Raise InvalidInput that says what is allowed."""
        if raw is None:
            return self.default
        value = _READERS[self.kind](self, raw)
        if value is None:
            raise InvalidInput(f"{self.name}={shortened(raw)!r}: {self.allowed()}")
        return value

    def allowed(self) -> str:
        """Return the allowed values in words."""
        return {
            "integer": f"a whole number from {self.least} to {self.most} is allowed",
            "choice": f"one of {', '.join(self.choices)} is allowed",
            "hex": f"{self.least} to {self.most} lower-case hex digits, an even number of them, "
            "are allowed",
            "text": f"{max(1, self.least)} to {self.most} characters other than NUL are allowed",
            "flag": "true or false is allowed",
            "cursor": "only `next` of an answer of the same list is allowed",
        }[self.kind]

    def schema(self) -> dict[str, Any]:
        """Return its JSON schema."""
        if self.kind == "integer":
            bounds: dict[str, Any] = {"type": "integer", "minimum": self.least}
            bounds["maximum"] = self.most
        elif self.kind == "flag":
            bounds = {"type": "boolean"}
        else:
            bounds = {"type": "string"}
            if self.kind == "choice":
                bounds["enum"] = list(self.choices)
            elif self.kind == "hex":
                pattern = rf"^([0-9a-f]{{2}}){{{self.least // 2},{self.most // 2}}}$"
                bounds["pattern"] = pattern
            else:
                bounds |= {"minLength": 1, "maxLength": self.most, "pattern": r"^[^\u0000]*$"}
        return bounds if self.default is None else bounds | {"default": self.default}


def _integer(parameter: Parameter, raw: str) -> int | None:
    if not raw.isascii() or not raw.isdigit() or len(raw) > 19:
        return None
    value = int(raw)
    return value if parameter.least <= value <= parameter.most else None


def _choice(parameter: Parameter, raw: str) -> str | None:
    return raw if raw in parameter.choices else None


def _hex(parameter: Parameter, raw: str) -> bytes | None:
    fits = parameter.least <= len(raw) <= parameter.most and len(raw) % 2 == 0
    return bytes.fromhex(raw) if fits and _HEX.match(raw) else None


def _text(parameter: Parameter, raw: str) -> str | None:
    fits = max(1, parameter.least) <= len(raw) <= parameter.most
    return raw if fits and textual(raw) and "\0" not in raw else None


def _flag(parameter: Parameter, raw: str) -> bool | None:
    return {"true": True, "false": False}.get(raw)


_READERS = {
    "integer": _integer,
    "choice": _choice,
    "hex": _hex,
    "text": _text,
    "flag": _flag,
    "cursor": _text,
}


def read_all(parameters: Sequence[Parameter], items: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of a query by name.

    Raise InvalidInput for an unknown or repeated name, or a wrong value.
    """
    given: dict[str, str] = {}
    known = {parameter.name for parameter in parameters}
    for name, value in items:
        if name not in known:
            words = ", ".join(sorted(known)) or "there are none here"
            raise InvalidInput(f"unknown parameter {shortened(name)!r}; known: {words}")
        if name in given:
            raise InvalidInput(f"parameter {name!r} is given twice; once is allowed")
        given[name] = value
    return {parameter.name: parameter.read(given.get(parameter.name)) for parameter in parameters}


def read_path(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a path. Raise InvalidInput for a wrong one."""
    return {parameter.name: parameter.read(given[parameter.name]) for parameter in parameters}


def shortened(text: str) -> str:
    """Return the beginning of a text for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def cursor(kind: str, *place: str | int) -> str:
    """Return the cursor of a place in a list."""
    data = json.dumps([kind, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def place_of(kind: str, text: str | None, *types: type) -> tuple[Any, ...] | None:
    """Return the place that a cursor names; None without one. Raise InvalidInput for another text.

    Cursors are not signed: any place is a fair question.
    """
    if text is None:
        return None
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = json.loads(data)
    except (ValueError, binascii.Error, RecursionError):
        found = None
    if (
        not isinstance(found, list)
        or len(found) != 1 + len(types)
        or found[0] != kind
        or any(type(value) is not kind_ for value, kind_ in zip(found[1:], types, strict=True))
        or any(isinstance(v, int) and not 0 <= v <= LAST for v in found[1:])
        or any(isinstance(v, str) and not (textual(v) and len(v) <= MOST_ID) for v in found[1:])
    ):
        raise InvalidInput(
            f"after={shortened(text)!r}: only `next` of an answer of the same list is allowed"
        )
    return tuple(found[1:])
