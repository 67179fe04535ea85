"""sql: questions to a SQLite database, which nothing can change.

A call is one statement that reads, between two marks, `<sql>` and `</sql>` by default; the answer
is a table, a row a line. The database is opened as it lies, without locks, and only what reads is
allowed. A statement has a number of steps of SQLite's virtual machine, its clock stands still and
its random numbers come from the seed of the tree, so that equal paths have equal answers.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from banyan.plugins import Row, checks
from methods.environment import sql_fixed
from methods.environment.calls import Marks

_MOST_ABOUT = 32_768  # characters
# Tables that a statement made; SQLite's own, and those behind a virtual one, are left out.
_TABLES = """
    select schema.sql from sqlite_schema schema join pragma_table_list list
        on list.name = schema.name
    where list.schema = 'main' and list.type in ('table', 'view', 'virtual')
        and schema.type in ('table', 'view') and schema.name not like 'sqlite\\_%' escape '\\'
        and schema.sql is not null
    order by schema.name
"""
_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_HEAD = b"SQLite format 3\0"
_NO_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
_LONGEST = 10_000  # characters of a statement
_LONGEST_VALUE = 1_000_000  # bytes, within a statement
_SHOWN = 200  # characters of a value
_STEPS_A_LOOK = 1000


@dataclass
class Sql:
    """Answers with the rows that a statement selects."""

    database: str
    """A SQLite file; or a folder of them, whose names rows have in `row_field`."""
    row_field: str = ""
    """Field of the row with the name of its file in the folder, with or without .sqlite or .db."""
    rows: int = 20
    """Rows of an answer; more are counted."""
    steps: int = 20_000_000
    """Steps of SQLite's virtual machine that a statement may take: some two seconds."""
    begin: str = "<sql>"
    """Mark before a statement."""
    end: str = "</sql>"
    """Mark behind it, with which the action ends."""

    name: str = field(default="sql", init=False)
    _at: Path = field(default=Path(), init=False, repr=False)
    effect: ClassVar[str] = "none"
    deterministic: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ("database",)

    def __post_init__(self) -> None:
        Marks(self.begin, self.end)
        checks.whole(self, ("rows",), 1, 1000)
        checks.whole(self, ("steps",), _STEPS_A_LOOK, 10**12)

    def prepare(self) -> None:
        """Look at a single file while the files beside it can be seen. Raises ValueError for one
        that cannot be read, for a `row_field` beside it, and for a folder without one.
        """
        if Path(self.database).is_dir() and not self.row_field:
            raise ValueError(
                f"{self.database} is a folder: set row_field to the rows' field that names a file"
                " of it"
            )
        if Path(self.database).is_file():
            if self.row_field:
                raise ValueError(
                    f"{self.database} is one file for all rows, so row_field {self.row_field!r}"
                    " would not be read; leave it out, or name the folder of the databases"
                )
            _check(Path(self.database))

    def reset(self, row: Row, seed: int = 0) -> None:
        """Choose the database. Raises ValueError for a row that names none, or half of one."""
        self._at = self._file(row)
        _check(self._at)

    def about(self) -> str:
        """Return the text that tells a model of the database and, of a single one, its tables."""
        lines = [
            "You may read a SQLite database: the answer is the rows that one statement selects."
            f" A call is {self.begin}SELECT name FROM sqlite_schema{self.end}"
        ]
        if not self.row_field:
            with self._opened() as database:
                database.text_factory = lambda text: text.decode(errors="replace")
                tables = [text for (text,) in database.execute(_TABLES)]
            lines += ["Its tables:", *tables] if tables else []
        return "\n".join(lines)[:_MOST_ABOUT]

    def step(self, action: str) -> tuple[str, float, bool]:
        """Answer a statement. Raises ValueError or sqlite3.Error for one that is wrong."""
        statement = Marks(self.begin, self.end).call(action)
        if len(statement) > _LONGEST:
            raise ValueError(f"a statement has at most {_LONGEST} characters")
        with self._opened() as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            sql_fixed.fix(database)
            database.set_authorizer(_allowed)
            return self._answer(database, statement), 0.0, False

    def _opened(self) -> closing[sqlite3.Connection]:
        name = f"file:{quote(str(self._at))}?mode=ro&immutable=1"
        database = sqlite3.connect(name, uri=True)
        database.execute("pragma temp_store = memory")  # a step may write no file to sort in
        return closing(database)

    def _answer(self, database: sqlite3.Connection, statement: str) -> str:
        looks = iter(range(self.steps // _STEPS_A_LOOK))
        database.set_progress_handler(lambda: next(looks, None) is None, _STEPS_A_LOOK)
        try:
            cursor = database.execute(statement)
            heads = [column[0] for column in cursor.description or ()]
            found = cursor.fetchmany(self.rows)
            more = sum(1 for _ in cursor)
        except sqlite3.OperationalError:
            if next(looks, None) is None:
                raise ValueError(
                    f"a statement may take {self.steps} steps of SQLite; ask for less"
                ) from None
            raise
        return _table(heads, found, more)

    def _file(self, row: Row) -> Path:
        at = Path(self.database)
        if at.is_dir():
            if self.row_field not in row:
                raise ValueError(f"the row has no field {self.row_field!r} with its database")
            named = str(row[self.row_field])
            names = [named, f"{named}.sqlite", f"{named}.db"] if Path(named).name == named else []
            at = next((at / name for name in names if (at / name).is_file()), at / "missing")
        if not at.is_file():
            raise ValueError(
                f"there is no database for the row in {self.database}; field"
                f" {self.row_field!r} must name a file of that folder"
            )
        _check(at)
        return at


def _check(at: Path) -> None:
    with at.open("rb") as file:
        head = file.read(len(_HEAD))
    if head not in (_HEAD, b""):
        raise ValueError(f"{at} is no SQLite database: it begins with {head!r}")
    log = Path(f"{at}-wal")
    if log.is_file() and log.stat().st_size:
        raise ValueError(
            f"{at} has changes in {log.name}, which would not be seen; put them into it with"
            " `PRAGMA wal_checkpoint(TRUNCATE)`"
        )


def _allowed(action: int, first: str | None, second: str | None, *_: object) -> int:
    known = action in _READS and str(second).lower() not in _NO_FUNCTIONS
    return sqlite3.SQLITE_OK if known else sqlite3.SQLITE_DENY


def _table(heads: list[str], rows: Iterable[tuple[object, ...]], more: int) -> str:
    lines = [" | ".join(heads), *(" | ".join(map(_shown, row)) for row in rows)]
    if more:
        lines.append(f"… and {more} more")
    return "\n".join(lines) if len(lines) > 1 else f"{lines[0]}\n(no rows)"


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text.replace("\n", " ")[:_SHOWN]
