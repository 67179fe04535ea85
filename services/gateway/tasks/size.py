"""The largest size of a row. A message of 1 MiB carries a tree's row and, once more, its prompt."""

from typing import Any

from banyan.digest import canonical
from banyan.errors import InvalidInput

MOST_KIB = 256


def check_size(row: dict[str, Any], where: str) -> None:
    """Raise InvalidInput that names the row and its size if it is too large.

    Pass on the errors of `canonical` for values that JSON cannot hold.
    """
    size = len(canonical(row))
    if size > MOST_KIB << 10:
        raise InvalidInput(
            f"{where} is a row of {size >> 10:,} KiB as JSON, and at most {MOST_KIB} are taken;"
            " shorten it, or keep what is large in files that it names"
        )
