"""Values of a recipe that are nobody else's business, replaced. Pure.

Secrets belong into environment variables, which recipes only name; this is for those that stand in
a recipe all the same, before it is shown to others.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "(hidden)"
_SECRET = re.compile(r"key|token|secret|password|passwd|credential|authorization|cookie", re.I)
# Names of settings that match and count tokens, or name a variable that holds a secret.
_HARMLESS = re.compile(r"tokens|_env$|tokenizer|token_level", re.I)
_ADDRESS = re.compile(r"(://)[^/@\s]+@")  # a user and a password in an address
_QUERY = re.compile(rf"([?&][^=&#\s]*(?:{_SECRET.pattern})[^=&#\s]*=)[^&#\s]+", re.I)
_ARGUMENT = re.compile(r"(-{1,2}|)([\w-]+)(=?)(.*)", re.S)  # --api-key=…, API_KEY=…, --api-key
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/-]{8,}=*")
# Forms of tokens that well-known services give.
_KNOWN = re.compile(
    r"\b(?:sk-[\w-]{16,}|hf_\w{16,}|gh[opsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_MAPPINGS = ("env", "environ", "headers")  # whose values are hidden, whatever their names


def redacted(value: Any, name: str = "") -> Any:
    """Return plain data without secrets.

    Hidden are texts under names like `api_key`, in `env` and `headers`, after options like
    `--token`, logins and keys in addresses, and what has the form of a well-known token.
    """
    if isinstance(value, Mapping):
        inside = name if name in _MAPPINGS or _secret(name) else ""
        return {key: redacted(part, inside or str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return _of_list(value, name)
    if not isinstance(value, str):
        return value
    return HIDDEN if value and (name in _MAPPINGS or _secret(name)) else _within(value)


def _of_list(parts: Sequence[Any], name: str) -> list[Any]:
    """Return a list, which may be a command: the part after an option like --token is hidden."""
    found: list[Any] = []
    hide = False
    for part in parts:
        option = _ARGUMENT.fullmatch(part) if isinstance(part, str) else None
        if hide and isinstance(part, str) and part:
            found.append(HIDDEN)
        elif option and option[3] and _secret(option[2]):
            found.append(f"{option[1]}{option[2]}={HIDDEN}")
        else:
            found.append(redacted(part, name))
        names = option is not None and option[1] and not option[3] and not option[4]
        hide = bool(option and names and _secret(option[2]))
    return found


def _secret(name: str) -> bool:
    return bool(_SECRET.search(name) and not _HARMLESS.search(name))


def _within(text: str) -> str:
    """Return a text without the secrets in it."""
    text = _ADDRESS.sub(rf"\1{HIDDEN}@", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _KNOWN.sub(HIDDEN, text)
