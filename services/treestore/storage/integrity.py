"""A check of a SQLite file for damage, beside the work on it (ADR 046)."""

import sqlite3
from pathlib import Path

from services.treestore.storage import faults

_MAX_FINDINGS = 3  # in the result
_MAX_CHARACTERS = 200  # of each
_STEPS = 10_000  # of SQLite between checks for a stop


class QuickCheck:
    """One pass over all pages of a file, on its own read-only connection: a second for some 800 MB.

    It finds pages of tables and indices that are torn, zeroed or linked wrongly. It cannot find
        changes within a value, as on the last page of a long one: SQLite keeps no checksums.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stopped = False

    def stop(self) -> None:
        """End the pass soon, without a result."""
        self._stopped = True

    def run(self) -> str | None:
        """Return the damage; empty if there is none, None if the pass was stopped or the file
        cannot be read now.
        """
        try:
            connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
            try:
                connection.set_progress_handler(lambda: self._stopped, _STEPS)
                rows = connection.execute(f"PRAGMA quick_check({_MAX_FINDINGS})").fetchall()
            finally:
                connection.close()
        except sqlite3.DatabaseError as error:
            return str(error) if faults.torn(error) else None
        findings = [str(row[0]).replace("\n", " ")[:_MAX_CHARACTERS] for row in rows]
        return "" if findings == ["ok"] else "; ".join(findings)
