"""What is opened: the trees of a training group or of an evaluation, with ids that follow from run, group, row and index.

The same ordinal gives the same ids in every process, so opening again after a crash changes nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from banyan.digest import tree_id
from banyan.draws import key
from banyan.recipe import Recipe
from banyan.v1 import tree_pb2
from services.gateway.control import evaluation
from services.gateway.control.evaluation import Evaluation
from services.gateway.control.uniform import Uniform
from services.gateway.rows import Prompt, Rows

TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Wave:
    """Groups that a deterministic node admits together; its name holds all that is needed to complete it after a crash."""

    run_id: str
    step: int
    first: int  # ordinal of its first group
    groups: int

    @property
    def name(self) -> str:
        return f"{self.run_id}/{TRAIN}/{self.step}/{self.first}+{self.groups}"

    @classmethod
    def parse(cls, name: str) -> "Wave":
        """The wave of a name that `name` gave."""
        run_id, _, step, span = name.rsplit("/", 3)
        first, groups = span.split("+")
        return cls(run_id, int(step), int(first), int(groups))

    @property
    def ordinals(self) -> range:
        return range(self.first, self.first + self.groups)


class Opener:
    """Makes the trees of one run."""

    def __init__(self, run_id: str, recipe: Recipe, rows: Rows) -> None:
        self.run_id, self.recipe, self.rows = run_id, recipe, rows
        self._order = Uniform(len(rows.train), recipe.seed)

    def training(self, ordinal: int, min_step: int, wave: Wave | None = None) -> list[tree_pb2.TreeSpec]:
        """The trees of the training group `ordinal`."""
        prompt = self.rows.prompt(self.rows.train[self._order.row(ordinal)])
        trees = self.recipe.generate.trees
        shared: dict[str, Any] = {
            "purpose": tree_pb2.TREE_PURPOSE_TRAIN,
            "group_id": f"{self.run_id}/{TRAIN}/{ordinal}",
            "group_ordinal": ordinal,
            "group_size": trees,
            "min_step": min_step,
            "generate_json": generate_json(self.recipe),
        }
        if wave:
            shared |= {"wave": wave.name, "wave_size": wave.groups * trees}
        return [self._spec(prompt, index, shared) for index in range(trees)]

    def evaluation(self, wanted: Evaluation) -> Iterator[tree_pb2.TreeSpec]:
        """The trees of an evaluation: one for each held-out row that is measured."""
        count = evaluation.measured_rows(self.recipe, len(self.rows.held_out))
        for ordinal, row in enumerate(self.rows.held_out[:count]):
            shared: dict[str, Any] = {
                "purpose": tree_pb2.TREE_PURPOSE_EVAL,
                "label": wanted.label,
                "group_id": f"{self.run_id}/{wanted.label}/{ordinal}",
                "group_ordinal": ordinal,
                "group_size": 1,
                "min_step": wanted.step,
                "max_step": wanted.step,
                "generate_json": evaluation_json(self.recipe, wanted),
            }
            if self.recipe.deterministic:
                shared |= {"wave": f"{self.run_id}/{wanted.label}", "wave_size": count}
            yield self._spec(self.rows.prompt(row), 0, shared)

    def _spec(self, prompt: Prompt, index: int, shared: dict[str, Any]) -> tree_pb2.TreeSpec:
        tree = tree_id(self.run_id, shared["group_id"], prompt.digest, index)
        return tree_pb2.TreeSpec(
            run_id=self.run_id,
            tree_id=tree,
            index=index,
            row_digest=prompt.digest,
            row_json=prompt.row_json,
            messages_json=prompt.messages_json,
            scorers=self.recipe.scorers,
            seed=key(self.recipe.seed, "tree", tree) >> 1,  # below 2^63, for databases without unsigned integers
            score_deadline_ms=round(self.recipe.control.score_deadline_s * 1000),
            max_claims=self.recipe.control.max_claims,
            **shared,
        )


def generate_json(recipe: Recipe) -> str:
    """How training trees grow."""
    part = recipe.generate
    return _json(recipe, part.policy, dict(part.settings), part.temperature)


def evaluation_json(recipe: Recipe, wanted: Evaluation) -> str:
    """How an evaluation's trees grow: one greedy answer, or independent samples at the recipe's temperature."""
    if wanted.kind == "greedy":
        return _json(recipe, "iid", {"width": 1}, 0.0)
    return _json(recipe, "iid", {"width": recipe.eval.samples}, recipe.generate.temperature)


def _json(recipe: Recipe, policy: str, settings: dict[str, Any], temperature: float) -> str:
    part = recipe.generate
    return json.dumps(
        {
            "name": policy,
            "settings": settings,
            "max_new_tokens": part.max_new_tokens,
            "temperature": temperature,
            "top_p": part.top_p,
            "top_k": part.top_k,
            "stop": part.stop,
        }
    )
