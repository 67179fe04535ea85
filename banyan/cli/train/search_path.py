"""Folders in which a state folder's runs find their own code: kept, so that a resumed run finds its reward function, too."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_FILE = "search-path.json"
_MOST = 32


def remembered(state: Path, folders: Sequence[Path]) -> list[str]:
    """These folders, then those of earlier runs that are still there, newest first."""
    try:
        earlier = [str(folder) for folder in json.loads((state / _FILE).read_text())]
    except (OSError, ValueError, TypeError):
        earlier = []
    return list(dict.fromkeys([*map(str, folders), *(f for f in earlier if Path(f).is_dir())]))[
        :_MOST
    ]


def keep(state: Path, folders: Sequence[str]) -> None:
    """Writes the folders down."""
    partial = state / f"{_FILE}.partial"
    partial.write_text(json.dumps(list(folders)))
    partial.rename(state / _FILE)


@contextmanager
def searched(folders: Sequence[Path]) -> Iterator[None]:
    """Finds modules in these folders too, as services do that get them as BANYAN_PATH."""
    known = list(sys.path)
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = known
