"""search: passages of the user's own texts, the best matches first.

A call is a question between two marks, `<search>` and `</search>` by default; the answer is the
passages that share words with it, ranked by BM25 (Robertson et al. 1994, TREC-3) as SQLite's FTS5
computes it. The texts are indexed once in each child.
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from banyan.plugins import Row, checks
from methods.environment.calls import Marks

_WORD = re.compile(r"\w+")
_MOST_WORDS = 64


@dataclass
class Search:
    """Answers with passages."""

    corpus: str
    """JSON Lines with a text in `text` and perhaps a title in `title`."""
    passages: int = 3
    """Passages of an answer."""
    chars: int = 400
    """Characters of a passage."""
    begin: str = "<search>"
    """Mark before a question."""
    end: str = "</search>"
    """Mark behind it, with which the action ends."""

    name: str = field(default="search", init=False)
    _index: sqlite3.Connection | None = field(default=None, init=False, repr=False)
    effect: ClassVar[str] = "none"
    deterministic: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ("corpus",)

    def __post_init__(self) -> None:
        Marks(self.begin, self.end)
        checks.whole(self, ("passages",), 1, 100)
        checks.whole(self, ("chars",), 20, 100_000)

    def prepare(self) -> None:
        """Index the texts. Raises ValueError that names a line without one."""
        index = sqlite3.connect(":memory:")
        index.execute("create virtual table texts using fts5(title, text, tokenize=unicode61)")
        index.executemany("insert into texts values (?, ?)", _texts(Path(self.corpus)))
        index.commit()
        if index.execute("select count(*) from texts").fetchone() == (0,):
            raise ValueError(f"{self.corpus} holds no texts")
        self._index = index

    def about(self) -> str:
        """Return the text that tells a model of the search."""
        return (
            "You may search texts: the answer is the passages that share most words with your"
            f" question. A call is {self.begin}who wrote it{self.end}"
        )

    def reset(self, row: Row, seed: int = 0) -> None:
        """Begin; all episodes search the same texts."""

    def step(self, action: str) -> tuple[str, float, bool]:
        """Answer a question. Raises ValueError for one without words."""
        words = _WORD.findall(Marks(self.begin, self.end).call(action))[:_MOST_WORDS]
        if not words:
            raise ValueError("a question needs words")
        asked = " OR ".join(f'"{word}"' for word in words)
        assert self._index is not None  # prepared
        found = self._index.execute(
            "select title, text from texts where texts match ? order by bm25(texts), rowid limit ?",
            (asked, self.passages),
        ).fetchall()
        if not found:
            return "(nothing found)", 0.0, False
        return "\n".join(self._shown(n, *one) for n, one in enumerate(found, 1)), 0.0, False

    def _shown(self, number: int, title: str, text: str) -> str:
        head = f"[{number}] {title}: " if title else f"[{number}] "
        return head + text[: self.chars]


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    # Bytes that are no text become halves of characters, so that their line is named.
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                title, text = entry.get("title", ""), entry["text"]
                f"{title}{text}".encode()  # half characters cannot be kept
            except (ValueError, KeyError, AttributeError, RecursionError):
                title, text = "", None
            if not isinstance(text, str) or not isinstance(title, str):
                raise ValueError(f'{path} line {number} is no object with a "text": {line[:60]!r}')
            yield title, text
