"""A completion with its verdict, written before any scorer saw it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

UNSCORABLE = "UNSCORABLE"
Expected = float | str
"""A value, or UNSCORABLE: the row or the scorer's owner is to blame, never the completion."""
Table = Mapping[str, tuple[str, Expected]]
"""Label → completion and verdict."""


@dataclass(frozen=True)
class Subject:
    """A scorer with settings and a row.

    peers: completions of the group before the one to judge, for a scorer of groups.
    """

    scorer: str
    settings: Mapping[str, Any]
    row: Mapping[str, Any]
    peers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A completion of a subject's row.

    expected: its verdict.
    exhausts: it hangs, or takes all memory; its verdict needs a rule of the sandbox.
    """

    subject: Subject
    label: str
    completion: str
    expected: Expected
    exhausts: bool = False

    @property
    def id(self) -> str:
        """Name of the case in a report."""
        of = self.subject.row.get("dataset", "")
        return f"{self.subject.scorer} {of} {self.label}".replace("  ", " ")


def cases(subject: Subject, table: Table, *, exhausts: bool = False) -> Iterator[Case]:
    """Yield the cases of a table."""
    for label, (completion, expected) in table.items():
        yield Case(subject, label, completion, expected, exhausts)
