"""How large a row may be: a tree's opening carries it, and its prompt once more, in one message of at most 1 MiB."""

from typing import Any

from banyan.digest import canonical
from banyan.errors import InvalidInput

MOST_KIB = 256


def check_size(row: dict[str, Any], where: str) -> None:
    """Raises InvalidInput that names the row and its size; what `canonical` raises where JSON has no form for a value."""
    size = len(canonical(row))
    if size > MOST_KIB << 10:
        raise InvalidInput(
            f"{where} is a row of {size >> 10:,} KiB as JSON, and at most {MOST_KIB} are taken;"
            " shorten it, or keep what is large in files that it names"
        )
