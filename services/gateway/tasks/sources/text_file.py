"""Text files of the user's, opened so that every fault names the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from banyan.errors import InvalidInput


@contextmanager
def opened(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Yield the file as UTF-8 text without a byte order mark.

    newline: as `open` has it.

    Raise InvalidInput if it cannot be opened or read, also for faults inside the block.
    """
    try:
        with open(path, encoding="utf-8-sig", newline=newline) as file:
            yield file
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not UTF-8 text: it holds the byte {error.object[error.start]:#x}; convert"
            " it to UTF-8"
        ) from None


def brief(text: str) -> str:
    """Return the beginning of a text, short enough for a message."""
    return text if len(text) <= 80 else text[:77] + "..."
