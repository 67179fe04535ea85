"""The examples of a run: the training and held-out rows, and their prompts.

Loaded by each process, never stored.
"""

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
    """A row in the form that a tree carries.

    digest: of the row.
    row_json: the row as canonical JSON.
    messages_json: its prompt as chat messages.
    """

    digest: bytes
    row_json: str
    messages_json: str


@dataclass(frozen=True, slots=True)
class Examples:
    """The rows of a task, split.

    train: training rows.
    held_out: held-out rows, in order of row digest.
    digest: of the split.
    """

    task: Task
    train: Sequence[dict[str, Any]]
    held_out: Sequence[dict[str, Any]]
    digest: bytes

    def prompt(self, row: dict[str, Any]) -> Prompt:
        """Return a row in the form that a tree carries."""
        messages = json.dumps(tasks.messages(row, self.task), ensure_ascii=False)
        return Prompt(row_digest(row), canonical(row).decode(), messages)

    def held_out_digests(self) -> list[bytes]:
        return [row_digest(row) for row in self.held_out]


class Prompts(Sequence[str]):
    """The text of each training row's prompt, made on access: of many rows, few are read."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples.train)

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(len(self))[row]]
        messages = tasks.messages(self._examples.train[row], self._examples.task)
        return "\n".join(message["content"] for message in messages if message["role"] != "system")


async def load(recipe: Recipe, base: Path) -> Examples:
    """Return the examples of a recipe, read in a thread.

    Raise InvalidInput if they cannot be read or none is left to train on.
    """
    return await asyncio.to_thread(read, recipe, base)


def read(recipe: Recipe, base: Path) -> Examples:
    """Return the examples of a recipe; blocks while files are read or generators run."""
    split = tasks.split(tasks.load(recipe.task, base), recipe.task)
    held_out = sorted(split.held_out, key=row_digest)
    return Examples(task=recipe.task, train=split.train, held_out=held_out, digest=split.digest)
