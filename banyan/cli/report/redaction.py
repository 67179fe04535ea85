"""Values of a recipe that are nobody else's business, replaced. Pure."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"
_SECRET = re.compile(r"key|token|secret|password|passwd|credential|authorization|cookie", re.I)
# Names of settings that match and count tokens, or name a variable that holds a secret.
_HARMLESS = re.compile(r"tokens|_env$|tokenizer|token_level", re.I)
_ADDRESS = re.compile(r"(://)[^/@\s]+@")  # a user and a password in an address


def redacted(value: Any, name: str = "") -> Any:
    """Return plain data without secrets: texts under names like `api_key`, logins in addresses."""
    if isinstance(value, Mapping):
        return {key: redacted(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(part, name) for part in value]
    if not isinstance(value, str):
        return value
    if value and _SECRET.search(name) and not _HARMLESS.search(name):
        return HIDDEN
    return _ADDRESS.sub(rf"\1{HIDDEN}@", value)
