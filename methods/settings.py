"""Settings of the registered methods, no method itself: read from the fields of their classes.

A field's meaning is the text behind it. Estimators describe theirs in docs/plugins.md.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from banyan.text.field_meanings import field_meanings

_REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a method.

    default: as JSON has it, or `required`
    meaning: text behind the field
    """

    name: str
    default: str
    meaning: str

    @property
    def needed(self) -> bool:
        """True if it has no default."""
        return self.default == _REQUIRED


def of(plugin: Any) -> Iterator[Setting]:
    """Yield the settings of a method in their order; of a function there are none."""
    if not (isinstance(plugin, type) and dataclasses.is_dataclass(plugin)):
        return
    meanings: dict[str, str] = {}
    for base in reversed(plugin.__mro__):
        if dataclasses.is_dataclass(base):
            meanings |= field_meanings(base)
    for field in dataclasses.fields(plugin):
        if field.init:
            yield Setting(field.name, _default(field), meanings.get(field.name, ""))


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default_factory is not dataclasses.MISSING:
        return _yaml(field.default_factory())
    return _REQUIRED if field.default is dataclasses.MISSING else _yaml(field.default)


def _yaml(value: Any) -> str:
    match value:
        case None | bool() | str() | list() | tuple() | dict():
            return json.dumps(value, ensure_ascii=False)
    return str(value)
