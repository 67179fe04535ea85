"""Sources of examples: a file of rows, or a stored run."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from banyan.cli.sft import rows, stored
from banyan.digest import blake, canonical
from banyan.environments import renderers
from banyan.recipe import Recipe

if TYPE_CHECKING:
    from services.learner.sft.examples import Example


class Source(Protocol):
    """A source: read, and checked as far as that needs no model, before the model is loaded."""

    def read(self, recipe: Recipe, folder: Path) -> None:
        """Read it. Raise InvalidInput with the place of a fault.

        folder: of the base model
        """
        ...

    def examples(self, recipe: Recipe, folder: Path, model: Any, budget: int) -> list["Example"]:
        """Return its examples, in order.

        budget: most tokens of a packed sequence
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Return its digests and counts."""
        ...

    def leaves(self) -> Sequence[Mapping[str, Any]]:
        """Return the leaves that it consists of, if it is a run."""
        ...


class FromRows:
    """A file of rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[rows.Conversation] = []
        self._digest = ""

    def read(self, recipe: Recipe, folder: Path) -> None:
        self._rows = rows.read(self._path, recipe)
        with self._path.open("rb") as file:
            self._digest = hashlib.file_digest(file, "blake2b").hexdigest()

    def examples(self, recipe: Recipe, folder: Path, model: Any, budget: int) -> list["Example"]:
        from banyan.cli.sft.rendering import Renderer

        part, turns = recipe.environment, renderers.OURS
        if part is not None:
            turns = renderers.choose(recipe.model, part.renderer, part.renderer_settings)
        renderer = Renderer(folder, model, part, turns)
        return [renderer.example(row) for row in self._rows]

    def facts(self) -> dict[str, Any]:
        return {
            "rows": str(self._path.resolve()),
            "blake2b": self._digest,
            "count": len(self._rows),
        }

    def leaves(self) -> Sequence[Mapping[str, Any]]:
        return ()


class FromRun:
    """The paths of a stored run with at least some reward."""

    def __init__(self, state: Path, run_id: str, at_least: float) -> None:
        self._state, self._run_id, self._least = state, run_id, at_least
        self._paths = stored.StoredPaths("", ())

    def read(self, recipe: Recipe, folder: Path) -> None:
        self._paths = stored.read(self._state, self._run_id, self._least, folder)

    def examples(self, recipe: Recipe, folder: Path, model: Any, budget: int) -> list["Example"]:
        return [tree.example(budget) for tree in self._paths.trees]

    def facts(self) -> dict[str, Any]:
        leaves = self._paths.lines()
        return {
            "run": self._paths.run_id,
            "at_least": self._least,
            "trees": len(self._paths.trees),
            "leaves": len(leaves),
            "leaves_digest": blake(canonical([dict(leaf) for leaf in leaves])).hex(),
        }

    def leaves(self) -> Sequence[Mapping[str, Any]]:
        return self._paths.lines()
