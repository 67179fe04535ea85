"""Constructors of columns: no column is NULL unless its value may be missing, and every default
holds in the database as well.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    TypeDecorator,
)

from services.treestore.events.text import without_nul

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Bytes(LargeBinary):
    """Raw bytes, without the wrapping that older drivers needed: ours take and return bytes."""

    def bind_processor(self, dialect: Dialect) -> None:
        return None

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        return None


class Words(TypeDecorator[str]):
    """Text that every database takes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return without_nul(value) if value else value


# SQLite numbers rows by itself only where the key is exactly INTEGER.
_SERIAL = BigInteger().with_variant(Integer, "sqlite")


def text(name: str) -> Column[str]:
    """Return a text column, empty by default."""
    return Column(name, Words, nullable=False, default="", server_default="")


def int_(name: str, default: int = 0) -> Column[int]:
    """Return a column of 64-bit integers."""
    return Column(name, BigInteger, nullable=False, default=default, server_default=str(default))


def real(name: str) -> Column[float]:
    """Return a column of float64."""
    return Column(name, Float(53), nullable=False, default=0.0, server_default="0")


def bytes_(name: str, nullable: bool = False) -> Column[bytes]:
    """Return a column of raw bytes: ids, tensors, encoded messages."""
    return Column(name, Bytes, nullable=nullable)


def serial() -> Column[int]:
    """Return the column of a row's number, in order of insertion."""
    return Column("n", _SERIAL, primary_key=True, autoincrement=True)


def owner(table: str) -> list[Column[Any] | Index]:
    """Return the columns, and their index, by which rows are bounded for each run and node (ADR
    054).

    `node` claims the tree, as far as the store knows; it is empty if the tree is unknown. `bytes`
    is the size of the payload or letter.
    """
    return [text("node"), int_("bytes"), Index(f"ix_{table}_held", "run_id", "node", "bytes")]
