"""Steps of any recipe's trees in one process, with the parts of the services but without these.

A tree grows as on a node, is scored as by a verifier, and is trained on as by a learner; a
deterministic recipe makes the policies that the services make of it. Draws below a fork follow from
the segment above, whose id has the policy's digest in it: so that is the learner's, too. Nothing is
durable here.
"""

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.errors import NotReady
from banyan.facts import NO_FACTS, Facts
from banyan.plugins import Allocation
from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from bench.trees import scoring
from bench.trees.earlier import Batch, Groups, Replays, Rows
from bench.trees.scoring import Scorers
from services.chassis import models
from services.chassis.weights import file
from services.gateway.runs.evaluation import Evaluation, Kind
from services.gateway.runs.opening import Opener
from services.gateway.runs.staleness_gate import PolicySteps
from services.gateway.tasks import dataset
from services.learner import losses
from services.learner.data import from_store, metrics
from services.learner.data.prepare import Lesson, build_lesson
from services.learner.model.device import compute_dtype
from services.learner.model.load import load as load_trained
from services.learner.packing.head_observations import LeafObservations
from services.learner.training.trainer import StepReport, Trainer, settle
from services.rollout.engines.factory import maker
from services.rollout.growth.grower import Grower
from services.rollout.growth.requests import BranchKey
from services.rollout.growth.scores import LeafScore
from services.rollout.growth.spec import from_wire
from services.rollout.growth.step import GrowthStep

Row = dict[str, Any]


@dataclass
class Counts:
    """What growth, and training on it, took.

    sampled, prefilled: tokens
    trained: tokens of the packed sequences, each computed once
    path: tokens of the answers on the same paths, one by one: without prompts, which `trained` has
    leaves: ends of paths
    positions: steps of the engine in which branches were decoded
    branches: branches decoded in these, in all
    processor_s: processor time
    growing_s: time of growth alone
    """

    sampled: int = 0
    prefilled: int = 0
    trained: int = 0
    path: int = 0
    leaves: int = 0
    positions: int = 0
    branches: int = 0
    processor_s: float = 0.0
    growing_s: float = 0.0

    def add(self, other: "Counts") -> None:
        """Add the counts of another step."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class _Growing:
    """A tree that grows.

    spec: as it was opened
    scorer: of its leaves
    """

    grower: Grower
    row: Row
    spec: tree_pb2.TreeSpec
    scorer: Any
    rewards: dict[Leaf, float] = field(default_factory=dict)
    leaves: tuple[Leaf, ...] | None = None


@dataclass(frozen=True)
class Update:
    """What an optimizer step learnt from.

    batch: its own groups
    """

    batch: Batch
    lesson: Lesson
    report: StepReport

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step, under the names of docs/metrics.md."""
        own = {spec.tree_id for spec in self.batch.specs}
        credits = self.lesson.credits
        views = [view for credit in credits for view in credit.group.trees]
        replayed = {view.tree.tree_id for view in views} - own
        of_batch = metrics.of_batch(
            credits, lambda segment: self.batch.number - segment.policy_step, replayed
        )
        report = {"loss": self.report.loss, "clip_fraction": self.report.clip_fraction}
        return {**self.lesson.metrics, **of_batch, **report, **self.report.measures}


class InProcess:
    """A recipe's run in this process, on one thread of torch.

    facts: returns what is known of a tree beside its rewards
    update: the last optimizer step

    Raises NotReady for a recipe whose trees wait for what only services give.
    """

    def __init__(
        self,
        recipe: Recipe,
        run_id: str = "alone",
        facts: Callable[[Tree], Facts] = lambda tree: NO_FACTS,
    ) -> None:
        if recipe.environment is not None or recipe.control.rooms:
            raise NotReady(
                f"recipe {recipe.name} has an environment or rooms: run it with services"
            )
        settle(1)
        folder = models.resolve(recipe.model, tokenizer=True)
        self.recipe, self._facts = recipe, facts
        self.update: Update | None = None
        self._scorers, self._replays = Scorers(recipe), Replays(recipe)
        self._opener = Opener(run_id, recipe, dataset.read(recipe, Path()))
        self._rows = Rows(recipe, self._opener.examples)
        self._engine = maker(recipe, 1)()
        self._dtype = compute_dtype(recipe.resources.dtype)
        self._trainer = Trainer(load_trained(folder), recipe.optimise, self._dtype, recipe.seed)
        self._targets = losses.build(recipe.optimise.loss, recipe.optimise.loss_settings).targets
        optimise = recipe.optimise
        self._estimator = registry.build(
            "optimise", optimise.advantage, optimise.advantage_settings
        )
        self._publish(0)

    def step(self, number: int) -> Counts:
        """Take one optimizer step on the groups of a batch."""
        begun = time.process_time()
        allocations = self._rows.of(number)
        specs = self._training(number, allocations)
        trees, counts = self.grow(specs)
        batch = Batch(number, specs, _by_group(specs, trees))
        self._rows.learn(batch, allocations)
        lesson = self._lesson(batch)
        report = self._trainer.step(lesson.sequences, number, lesson.sizes, lesson.silent)
        self._publish(number + 1)
        self.update = Update(batch, lesson, report)
        counts.trained = sum(len(row.token_U) for row in lesson.sequences)
        counts.path = int(lesson.metrics["trained_path_tokens"])
        counts.processor_s = time.process_time() - begun
        return counts

    def sample(self, number: int) -> Counts:
        """Sample the trees of a step, and train on none."""
        return self.grow(self._training(number, self._rows.of(number)))[1]

    def accuracy(self, rows: int | None = None) -> float:
        """Return the mean greedy score on the held-out rows, or on the first so many of them."""
        values = [value for answers in self.answers("greedy", rows) for value in answers]
        return sum(values) / len(values)

    def answers(self, kind: Kind, rows: int | None = None) -> list[list[float]]:
        """Return the scores of each held-out row's answers, or of the first so many rows'.

        They are one greedy answer a row, or the recipe's `eval.samples`.
        """
        wanted = Evaluation(f"step-{self.policy.step}", kind, self.policy.step)
        trees, _ = self.grow(list(itertools.islice(self._opener.evaluation(wanted), rows)))
        return [[value for value in tree.rewards.values() if value is not None] for tree in trees]

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the policy."""
        return self._engine.tokenizer

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights of the policy in training."""
        return dict(self._trainer.model.state_dict())

    def grow(self, specs: Sequence[tree_pb2.TreeSpec]) -> tuple[list[ScoredTree], Counts]:
        """Grow trees together, as a node does, with their rewards."""
        before, counts, begun = self._engine.stats(), Counts(), time.perf_counter()
        if self.recipe.deterministic:
            self._engine.forget()
        growing = {spec.tree_id: self._begun(spec) for spec in specs}
        steps = [(tree, tree.grower.start()) for tree in growing.values()]
        while steps or self._engine.busy:
            for tree, step in steps:
                self._carry_out(tree, step)
            steps = []
            if self._engine.busy:
                branches = self._engine.stats().running
                samples = self._engine.step()
                counts.positions += 1 if branches else 0
                counts.branches += branches
                steps = _ended(growing, samples)
            steps += self._scored(growing.values())
        unfinished = [tree for tree in growing.values() if tree.leaves is None]
        if unfinished:
            label = unfinished[0].grower.spec.tree_policy_label
            raise RuntimeError(f"{label}: {len(unfinished)} trees are not done, and nothing runs")
        _score_groups(growing.values())
        trees = [self._result(tree) for tree in growing.values()]
        after = self._engine.stats()
        counts.sampled = after.sampled_tokens - before.sampled_tokens
        counts.prefilled = after.prefilled_tokens - before.prefilled_tokens
        counts.leaves = sum(len(tree.leaves) for tree in trees)
        counts.growing_s = time.perf_counter() - begun
        return trees, counts

    def _training(self, number: int, allocations: Sequence[Allocation]) -> list[tree_pb2.TreeSpec]:
        """Return the trees of a step."""
        first = number * self.recipe.control.groups_per_batch
        return [
            spec
            for ordinal, allocation in enumerate(allocations, first)
            for spec in self._opener.training(ordinal, allocation, PolicySteps(number))
        ]

    def _begun(self, spec: tree_pb2.TreeSpec) -> _Growing:
        tree = Grower(from_wire(spec), Tree(spec.tree_id), self._engine.tokenizer, "alone", 1)
        return _Growing(tree, json.loads(spec.row_json), spec, self._scorers.of(spec))

    def _carry_out(self, tree: _Growing, step: GrowthStep) -> None:
        if step.grown is not None:
            tree.leaves = step.grown
        for request in step.requests:
            self._engine.submit(request)
        keys = [tree.grower.key(branch) for branch in step.aborts]
        stopped = [sample for key in keys if (sample := self._engine.abort(key)) is not None]
        if stopped:
            self._carry_out(tree, tree.grower.ended(stopped))

    def _scored(self, trees: Iterable[_Growing]) -> list[tuple[_Growing, GrowthStep]]:
        """Return the steps that follow from the scores that trees wait for."""
        waiting = [tree for tree in trees if tree.leaves is None and tree.grower.lacks_scores]
        return [(tree, tree.grower.scored(self._scores(tree))) for tree in waiting]

    def _scores(self, tree: _Growing) -> list[LeafScore]:
        return [LeafScore(leaf, "alone", _reward(tree, leaf)) for leaf in tree.grower.leaves]

    def _result(self, tree: _Growing) -> ScoredTree:
        assert tree.leaves is not None
        rewards = {leaf: _reward(tree, leaf) for leaf in tree.leaves}
        grown = tree.grower.tree
        return ScoredTree(grown, tree.leaves, rewards, self._facts(grown))

    def _lesson(self, batch: Batch) -> Lesson:
        optimise = self.recipe.optimise
        observations: LeafObservations = {}
        if optimise.head is not None:
            grown = [tree for _, trees in batch.groups for tree in trees]
            stored = [tree_pb2.Tree(spec=spec) for spec in batch.specs]
            observations = from_store.leaf_observations(stored, grown)
        return build_lesson(
            self._replays.joined(batch),
            self._estimator,
            lambda tree, leaf: False,
            self.policy.digest,
            self._trainer.budget,
            observations=observations,
            targets=self._targets,
            minibatches=optimise.minibatches,
            entropy_quantile=optimise.entropy_quantile,
            most_groups=optimise.most_groups,
        )

    def _publish(self, step: int) -> None:
        """Write the weights as a learner does, and load them as a node does."""
        dtype = str(self._dtype).removeprefix("torch.")
        with tempfile.TemporaryDirectory() as folder:
            weights = self._trainer.published()
            manifest = file.write(Path(folder), "policy", weights, 0, step, dtype)
            self.policy = PolicyVersion(1, step, manifest.digest)
            self._engine.load(self.policy, manifest.manifest_path)


def _ended(
    growing: dict[bytes, _Growing], samples: Sequence[Any]
) -> list[tuple[_Growing, GrowthStep]]:
    by_tree: dict[bytes, list[Any]] = {}
    for sample in samples:
        assert isinstance(sample.key, BranchKey)
        by_tree.setdefault(sample.key.tree_id, []).append(sample)
    return [(growing[tree], growing[tree].grower.ended(part)) for tree, part in by_tree.items()]


def _by_group(specs: Sequence[tree_pb2.TreeSpec], trees: Sequence[ScoredTree]) -> Groups:
    groups: dict[str, list[ScoredTree]] = {}
    for spec, tree in zip(specs, trees, strict=True):
        groups.setdefault(spec.group_id, []).append(tree)
    return list(groups.items())


def _reward(tree: _Growing, leaf: Leaf) -> float:
    if leaf not in tree.rewards:
        score = tree.scorer.score(tree.grower.completion(leaf), tree.row)
        tree.rewards[leaf] = scoring.value(score)
    return tree.rewards[leaf]


def _score_groups(trees: Iterable[_Growing]) -> None:
    """Score the leaves of trees whose scorer sees whole groups."""
    groups: dict[str, list[_Growing]] = {}
    for tree in trees:
        if scoring.together(tree.scorer):
            groups.setdefault(tree.spec.group_id, []).append(tree)
    for members in groups.values():
        places = [
            (tree, leaf)
            for tree in members
            for leaf in scoring.left_to_right(tree.grower.tree, tree.leaves or ())
        ]
        texts = [tree.grower.completion(leaf) for tree, leaf in places]
        scores = members[0].scorer.score_group(texts, members[0].row)
        for (tree, leaf), score in zip(places, scores, strict=True):
            tree.rewards[leaf] = scoring.value(score)
