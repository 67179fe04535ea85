"""Paths of a stored run to learn from: those of its training trees that earned enough."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from banyan.cli.store import reading
from banyan.digest import blake
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.view import TreeView

if TYPE_CHECKING:
    from services.learner.sft.examples import Example


@dataclass(frozen=True, slots=True)
class StoredTree:
    """A tree with the leaves that earned enough.

    key: digest of its row
    """

    view: TreeView
    leaves: Sequence[int]
    key: bytes

    def example(self, budget: int) -> "Example":
        """Return the tree's paths as an example. `budget`: most tokens of a part."""
        from services.learner.sft import examples

        name = f"tree {self.view.tree.tree_id.hex()[:12]}"
        return examples.of_tree(name, self.key, self.view, self.leaves, budget)

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Yield its leaves for the record."""
        for index in self.leaves:
            leaf = self.view.leaves_L[index]
            reward = float(self.view.rewards_L[index])
            yield {"segment": leaf.segment.hex(), "end": leaf.end, "reward": reward}


@dataclass(frozen=True, slots=True)
class StoredPaths:
    """The trees of a run with paths that earned enough."""

    run_id: str
    trees: Sequence[StoredTree]

    def lines(self) -> list[Mapping[str, Any]]:
        """Return all leaves for the record, in order."""
        return [line for tree in self.trees for line in tree.lines()]


def read(state: Path, run_id: str, least: float, folder: Path) -> StoredPaths:
    """Return the paths of a run's training trees with a reward of at least `least`.

    Trees that measure are left out: their rows are held out. Raise InvalidInput for a run of other
    tokens than the model's in `folder`, and where no path earned enough.
    """
    with reading(state) as client:
        run = client.run(run_id)
        refuse_other_tokens(run, folder)
        messages = client.whole_trees(run.run_id, purpose=tree_pb2.TREE_PURPOSE_TRAIN)
        return chosen(run.run_id, messages, least)


def chosen(run_id: str, messages: Iterable[tree_pb2.Tree], least: float) -> StoredPaths:
    """Return the paths of trees with a reward of at least `least`.

    Raise InvalidInput if no path has.
    """
    from services.learner.data import from_store

    trees, best = [], -np.inf
    for message in messages:
        if not message.leaves:
            continue
        scored = from_store.scored_tree(message)
        view = TreeView(scored.tree, scored.leaves, scored.rewards, scored.facts)
        best = max(best, float(np.fmax.reduce(view.rewards_L, initial=-np.inf)))
        leaves = np.flatnonzero(view.rewards_L >= least).tolist()
        if leaves:
            trees.append(StoredTree(view, leaves, message.spec.row_digest))
    if not trees:
        most = f"the highest reward is {best:g}" if np.isfinite(best) else "nothing is scored"
        raise InvalidInput(
            f"no path of {run_id} has a reward of at least {least:g}: {most}; lower --at-least"
        )
    return StoredPaths(run_id, trees)


def refuse_other_tokens(run: rs.Run, folder: Path) -> None:
    """Raise InvalidInput unless the tokens of a run are those of the model in a folder."""
    from services.chassis import models

    recipe = Recipe.model_validate_json(run.recipe_json, strict=False)
    if recipe.resources.engine == "scripted":
        raise InvalidInput(
            f"{run.run_id} was sampled by the scripted engine, whose tokens are no model's"
        )
    if run.tokenizer_digest:
        file = folder / "tokenizer.json"
        same = file.is_file() and blake(file.read_bytes()) == run.tokenizer_digest
    else:
        same = models.present(recipe.model) == folder
    if not same:
        raise InvalidInput(
            f"{run.run_id} was sampled by {recipe.model}, whose tokenizer is another than that in "
            f"{folder}; name a recipe of a model with the same"
        )
