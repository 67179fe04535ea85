"""The rows of a run: which are trained on, which are held out, and what their prompts say. Loaded, never stored."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from banyan.digest import canonical, row_digest
from banyan.recipe import Recipe, Task
from services.gateway import tasks

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row with what a tree needs of it."""

    digest: bytes
    row_json: str
    messages_json: str


@dataclass(frozen=True, slots=True)
class Examples:
    """The rows of a task, split."""

    task: Task
    train: Sequence[dict[str, Any]]
    held_out: Sequence[dict[str, Any]]  # in order of row digest
    digest: bytes

    def prompt(self, row: dict[str, Any]) -> Prompt:
        """What a tree needs of a row."""
        messages = json.dumps(tasks.messages(row, self.task), ensure_ascii=False)
        return Prompt(row_digest(row), canonical(row).decode(), messages)

    def held_out_digests(self) -> list[bytes]:
        return [row_digest(row) for row in self.held_out]


class Prompts(Sequence[str]):
    """The text of each training row's prompt, made when it is asked for: there may be many rows, and few are."""

    def __init__(self, rows: Examples) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows.train)

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(len(self))[row]]
        asked = tasks.messages(self._rows.train[row], self._rows.task)
        return "\n".join(message["content"] for message in asked if message["role"] != "system")


async def load(recipe: Recipe, base: Path) -> Examples:
    """The rows of a recipe, read in a thread. Raises InvalidInput where they cannot be read or none is left to train on."""
    return await asyncio.to_thread(read, recipe, base)


def read(recipe: Recipe, base: Path) -> Examples:
    """The same, at once."""
    split = tasks.split(tasks.load(recipe.task, base), recipe.task)
    return Examples(recipe.task, split.train, sorted(split.held_out, key=row_digest), split.digest)
