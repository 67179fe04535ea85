"""How columns are made: nothing is NULL but what may be absent, and every default holds in the
database as well.
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

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Bytes(LargeBinary):
    """Raw bytes without the wrapping that drivers of old needed: ours take and give bytes."""

    def bind_processor(self, dialect: Dialect) -> None:
        return None

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        return None


def clean(words: str) -> str:
    """Text without NUL, which a model may sample and PostgreSQL does not take."""
    return words.replace("\x00", "\ufffd") if "\x00" in words else words


class Words(TypeDecorator[str]):
    """Text that every database takes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return clean(value) if value else value


# SQLite numbers rows by itself only where the key is exactly INTEGER.
_SERIAL = BigInteger().with_variant(Integer, "sqlite")


def text(name: str) -> Column[str]:
    """A text, empty by default."""
    return Column(name, Words, nullable=False, default="", server_default="")


def int_(name: str, default: int = 0) -> Column[int]:
    """A number of 64 bits."""
    return Column(name, BigInteger, nullable=False, default=default, server_default=str(default))


def real(name: str) -> Column[float]:
    """A float64."""
    return Column(name, Float(53), nullable=False, default=0.0, server_default="0")


def bytes_(name: str, nullable: bool = False) -> Column[bytes]:
    """Raw bytes: ids, tensors, encoded messages."""
    return Column(name, Bytes, nullable=nullable)


def serial() -> Column[int]:
    """The number of a row, in order of insertion."""
    return Column("n", _SERIAL, primary_key=True, autoincrement=True)


def held(table: str) -> list[Column[Any] | Index]:
    """Whose doing a row is that nobody asked for, so that each run and each node has its bound (ADR
    054).
    """
    # `node` has the tree's claim, as the store knows it; empty where the tree is unknown. `bytes`: of payload or letter.
    return [text("node"), int_("bytes"), Index(f"ix_{table}_held", "run_id", "node", "bytes")]
