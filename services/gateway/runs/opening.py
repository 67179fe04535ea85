"""The trees of a training group or of an evaluation, and their ids.

Ids follow from run, group, row and index: the same ordinal gives the same ids in every process, so
opening again after a crash changes nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from banyan.digest import tree_id
from banyan.draws import key
from banyan.plugins import Allocation
from banyan.recipe import Recipe
from banyan.recipe_loader import group_scorers, votes
from banyan.recipe_loader.environment_spec import environment_of
from banyan.v1 import tree_pb2
from banyan.wire.generate_spec import GenerateSpec
from services.gateway.runs import evaluation, model_facts
from services.gateway.runs.evaluation import Evaluation
from services.gateway.runs.staleness_gate import PolicySteps
from services.gateway.tasks import model_words, prompt_tokens
from services.gateway.tasks.dataset import Examples, Prompt

TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Wave:
    """Groups that a deterministic node admits together.

    Its name holds all that is needed to complete it after a crash.

    step: newest policy step.
    first: ordinal of its first group.
    groups: number of groups.
    trees: trees of all its groups.
    """

    run_id: str
    step: int
    first: int
    groups: int
    trees: int = 0

    @property
    def name(self) -> str:
        return f"{self.run_id}/{TRAIN}/{self.step}/{self.first}+{self.groups}"

    @classmethod
    def parse(cls, name: str) -> "Wave":
        """Return the wave of a `name`."""
        run_id, _, step, span = name.rsplit("/", 3)
        first, groups = span.split("+")
        return cls(run_id, int(step), int(first), int(groups))

    @property
    def ordinals(self) -> range:
        return range(self.first, self.first + self.groups)


class Opener:
    """The tree specs of one run."""

    def __init__(self, run_id: str, recipe: Recipe, examples: Examples) -> None:
        self.run_id, self.recipe, self.examples = run_id, recipe, examples
        self._group_scorers = group_scorers.scorers(recipe.filter)
        self._tokens = prompt_tokens.of(recipe)
        self._longest_path = model_facts.read(recipe).longest_path if recipe.environment else 0

    def training(
        self, ordinal: int, allocation: Allocation, steps: PolicySteps, wave: Wave | None = None
    ) -> list[tree_pb2.TreeSpec]:
        """Return the trees of the training group `ordinal` as allocated."""
        prompt = self.examples.prompt(self.examples.train[allocation.row])
        trees = self.group_size(allocation)
        shared: dict[str, Any] = {
            "purpose": tree_pb2.TREE_PURPOSE_TRAIN,
            "group_id": f"{self.run_id}/{TRAIN}/{ordinal}",
            "group_ordinal": ordinal,
            "group_size": trees,
            "min_step": steps.oldest,
            "generate_json": generate_json(self.recipe, allocation, self._longest_path),
        }
        if self.recipe.control.redundancy:
            in_order = self.recipe.control.redundancy_debias == "cancel_uniform"
            shared |= {
                "group_take": trees - self.recipe.control.redundancy,
                "take_in_order": in_order,
            }
        if steps.last is not None:
            shared["last_step"] = steps.last
        if allocation.messages:
            prompt = replace(
                prompt,
                messages_json=with_messages_before(prompt.messages_json, allocation.messages),
            )
        if wave:
            shared |= {"wave": wave.name, "wave_size": wave.trees}
        return [self._spec(prompt, index, shared) for index in range(trees)]

    def group_size(self, allocation: Allocation) -> int:
        """Return the number of trees that a group is opened with."""
        return (allocation.trees or self.recipe.generate.trees) + self.recipe.control.redundancy

    def evaluation(self, wanted: Evaluation) -> Iterator[tree_pb2.TreeSpec]:
        """Yield the trees of an evaluation: one for each measured held-out row."""
        count = evaluation.measured_rows(self.recipe, len(self.examples.held_out))
        scored = self._eval_scorers(wanted)
        grown = evaluation_json(self.recipe, wanted, self._longest_path)
        for ordinal, row in enumerate(self.examples.held_out[:count]):
            shared: dict[str, Any] = {
                "purpose": tree_pb2.TREE_PURPOSE_EVAL,
                "label": wanted.label,
                "group_id": f"{self.run_id}/{wanted.label}/{ordinal}",
                "group_ordinal": ordinal,
                "group_size": 1,
                "min_step": wanted.step,
                "max_step": wanted.step,
                "generate_json": grown,
                **scored,
            }
            if self.recipe.deterministic:
                shared |= {"wave": f"{self.run_id}/{wanted.label}", "wave_size": count}
            yield self._spec(self.examples.prompt(row), 0, shared)

    def _train_scorers(self) -> dict[str, Any]:
        return {
            "scorers": self.recipe.scorers,
            "scorer_weights": self.recipe.scorer_weights,
            "group_scorers": self._group_scorers,
        }

    def _eval_scorers(self, wanted: Evaluation) -> dict[str, Any]:
        """Return the scorers of an evaluation's leaves; those that count votes have no weight."""
        names, weights = self.recipe.eval_scorers, self.recipe.eval_weights
        counted = [part.name for part in votes.scorers(self.recipe)]
        if wanted.kind != "voted":
            return {"scorers": names, "scorer_weights": weights, "group_scorers": []}
        return {
            "scorers": [*names, *counted],
            "scorer_weights": [*(weights or [1.0] * len(names)), *[0.0] * len(counted)],
            "group_scorers": counted,
        }

    def _spec(self, prompt: Prompt, index: int, shared: dict[str, Any]) -> tree_pb2.TreeSpec:
        tree = tree_id(self.run_id, shared["group_id"], prompt.digest, index)
        tokens, digest = prompt_tokens.UNKNOWN
        if self._tokens:
            tokens, digest = self._tokens.digest(prompt.messages_json)
        return tree_pb2.TreeSpec(
            run_id=self.run_id,
            tree_id=tree,
            index=index,
            row_digest=prompt.digest,
            row_json=prompt.row_json,
            messages_json=prompt.messages_json,
            prompt_tokens=tokens,
            prompt_digest=digest,
            # Below 2^63, for databases without unsigned integers.
            seed=key(self.recipe.seed, "tree", tree) >> 1,
            score_deadline_ms=round(self.recipe.control.score_deadline_s * 1000),
            max_claims=self.recipe.control.max_claims,
            **{**self._train_scorers(), **shared},
        )


def generate_json(recipe: Recipe, allocation: Allocation, longest_path: int = 0) -> str:
    """Return the generation settings of a group's trees as JSON.

    longest_path: tokens that the model's longest path has; 0 if unknown.
    """
    part = recipe.generate
    settings = {**part.settings, **allocation.settings}
    return _json(
        recipe,
        tree_policy=part.policy,
        settings=settings,
        temperature=part.temperature,
        max_new_tokens=allocation.max_new_tokens,
        longest_path=longest_path,
    )


def with_messages_before(messages_json: str, before: Sequence[Mapping[str, str]]) -> str:
    """Return a prompt with messages before it; its system message stays the first."""
    messages = json.loads(messages_json)
    head = 1 if messages[0]["role"] == "system" else 0
    return json.dumps([*messages[:head], *map(dict, before), *messages[head:]], ensure_ascii=False)


def evaluation_json(recipe: Recipe, wanted: Evaluation, longest_path: int = 0) -> str:
    """Return the generation settings of an evaluation as JSON.

    They ask for one greedy answer, for independent samples at the recipe's temperature, or for the
    answers that vote.
    """
    if wanted.kind == "voted":
        return _voting_json(recipe, longest_path)
    greedy = wanted.kind == "greedy"
    return _json(
        recipe,
        tree_policy="iid",
        settings={"width": 1 if greedy else recipe.eval.samples},
        temperature=0.0 if greedy else recipe.generate.temperature,
        longest_path=longest_path,
    )


def _voting_json(recipe: Recipe, longest_path: int) -> str:
    counted = recipe.eval.votes
    assert counted is not None  # or nobody wants this evaluation
    tree_policy, settings = votes.growth(recipe, counted)
    return _json(
        recipe,
        tree_policy=tree_policy,
        settings=settings,
        temperature=recipe.generate.temperature,
        longest_path=longest_path,
        head=votes.every_token_scored(recipe, counted),
    )


def _json(
    recipe: Recipe,
    *,
    tree_policy: str,
    settings: dict[str, Any],
    temperature: float,
    max_new_tokens: int | None = None,
    longest_path: int,
    head: bool = False,
) -> str:
    part, environment = recipe.generate, environment_of(recipe, longest_path)
    spec = GenerateSpec(
        name=tree_policy,
        max_new_tokens=max_new_tokens or part.max_new_tokens,
        settings=settings,
        temperature=temperature,
        top_p=part.top_p,
        top_k=part.top_k,
        stop=tuple(part.stop),
        logit_bias=part.bias,
        environment=environment and replace(environment, words=model_words.of(recipe)),
        head=head,
    )
    return spec.to_json()
