"""The same run as functions called in one process; weights are shared in memory.

It has engine, scorer, estimator, packing and trainer. The cost of the services is measured against
it. Nothing is durable here and nothing can be resumed.
"""

import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.digest import row_digest, tree_id
from banyan.draws import branch_key, key
from banyan.plugins import Scored
from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from banyan.segment import Kind, Sampling, Segment
from banyan.tree import Leaf, Tree
from methods.control.uniform import row_of
from methods.filter.number import Number
from services.chassis import models
from services.chassis.weights import file
from services.gateway.tasks import Split, load, messages, split
from services.learner.data.prepare import Lesson, build_lesson
from services.learner.model.device import compute_dtype
from services.learner.model.load import load as load_trained
from services.learner.training.trainer import StepReport, Trainer, settle
from services.rollout.engines.factory import maker
from services.rollout.engines.port import Engine, Request
from services.rollout.engines.torch_engine import loading
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits

Row = dict[str, Any]


@dataclass
class Seconds:
    """Stages of a run's time."""

    sample: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    prepare: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    refresh: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


_FIRST = PolicyVersion(1, 0, b"0" * 32)


class OneProcess:
    """Steps of a recipe without services; only `iid` and the built-in task.

    With the `run_id` of a deterministic run through the services it makes the same policies, bit
    for bit: equal work.
    """

    def __init__(
        self, recipe: Recipe, run_id: str = "alone", policy: PolicyVersion = _FIRST
    ) -> None:
        folder = models.resolve(recipe.model)
        self.recipe = recipe
        self.run_id = run_id
        self.policy = policy
        self.seconds = Seconds()
        self.split: Split = split(load(recipe.task, Path()), recipe.task)
        settle(None)
        self.sampler: PreTrainedModel | None = None
        self.engine: Engine = (
            maker(recipe, None)() if recipe.resources.engine == "scripted" else self._torch(folder)
        )
        self.trainer = Trainer(
            load_trained(folder), recipe.optimise, compute_dtype(recipe.resources.dtype)
        )
        self.estimator = registry.build(
            "optimise", recipe.optimise.advantage, recipe.optimise.advantage_settings
        )
        self.scorer = Number(**(recipe.filter[0].settings if recipe.filter else {}))

    def _torch(self, folder: Path) -> TorchEngine:
        device, resources = loading.choose_device(), self.recipe.resources
        self.sampler = loading.load_model(
            folder, loading.choose_dtype(resources.dtype, device), device
        )
        tokenizer = loading.ChatTokenizer(folder, self.sampler)
        limits = Limits(
            resources.kv_tokens, resources.max_branches, deterministic=self.recipe.deterministic
        )
        return TorchEngine(Forward(self.sampler), tokenizer, limits, self.policy)

    def grow(
        self, rows: Sequence[Row], width: int, temperature: float, purpose: str, first: int = 0
    ) -> list[tuple[Tree, list[Leaf]]]:
        """Sample one tree per row, together; group ordinals count from `first`."""
        sampling = Sampling(
            temperature=temperature, max_new_tokens=self.recipe.generate.max_new_tokens
        )
        if self.recipe.deterministic:
            self.engine.forget()
        trees: list[tuple[Tree, list[Leaf]]] = []
        for number, row in enumerate(rows):
            identity = tree_id(
                self.run_id, f"{self.run_id}/{purpose}/{first + number}", row_digest(row), 0
            )
            prompt = self.engine.tokenizer.encode_chat(messages(row, self.recipe.task))
            root = Segment(identity, b"", 0, 0, Kind.PROMPT, prompt)
            trees.append((Tree(identity, [root]), []))
            seed = key(self.recipe.seed, "tree", identity) >> 1
            for ordinal in range(width):
                draws = branch_key(seed, root.id, len(root), ordinal)
                self.engine.submit(
                    Request((number, ordinal), prompt, draws, sampling, order=(number, ordinal))
                )
        while self.engine.busy:
            for done in self.engine.step():
                number, ordinal = done.key  # type: ignore[misc]
                tree, leaves = trees[number]
                assert tree.root is not None
                segment = Segment(
                    tree.tree_id,
                    tree.root.id,
                    len(tree.root),
                    ordinal,
                    Kind.POLICY,
                    done.tokens_T,
                    done.logprobs_T,
                    policy=self.policy.digest,
                    sampling=sampling,
                    finish=done.finish,
                    text=self.engine.tokenizer.decode(done.tokens_T),
                )
                tree.add(segment)
                leaves.append(Leaf(segment.id, len(segment)))
        return trees

    def step(self, number: int) -> tuple[Lesson, StepReport]:
        """Take one optimizer step: sample, score, estimate, train, refresh."""
        batch = self.recipe.control.groups_per_batch
        rows = [
            self.split.train[row_of(len(self.split.train), self.recipe.seed, number * batch + i)]
            for i in range(batch)
        ]
        t0 = time.perf_counter()
        grown = self.grow(
            rows,
            self.recipe.generate.settings["width"],
            self.recipe.generate.temperature,
            "train",
            number * batch,
        )
        t1 = time.perf_counter()
        scored = [
            (str(i), [self._score(tree, leaves, rows[i])]) for i, (tree, leaves) in enumerate(grown)
        ]
        t2 = time.perf_counter()
        budget = self.recipe.optimise.tokens_per_row
        lesson = build_lesson(
            scored,
            self.estimator,
            lambda tree, leaf: False,
            self.policy.digest,
            budget,
            targets=self.trainer.loss.targets,
        )
        t3 = time.perf_counter()
        report = self.trainer.step(lesson.sequences, number, silent=lesson.silent)
        t4 = time.perf_counter()
        self.refresh()
        t5 = time.perf_counter()
        s = self.seconds
        for spent, (begun, ended) in zip(
            (s.sample, s.score, s.prepare, s.train, s.refresh),
            itertools.pairwise((t0, t1, t2, t3, t4, t5)),
            strict=True,
        ):
            spent.append(ended - begun)
        s.steps.append(t5 - t0)
        return lesson, report

    def refresh(self) -> None:
        """Copy the trained weights into the sampler, in memory."""
        if self.sampler is not None:
            own = dict(self.trainer.model.named_parameters())
            with torch.no_grad():
                for name, target in self.sampler.named_parameters():
                    target.copy_(own[name])
        self.policy = PolicyVersion(1, self.policy.step + 1, self.policy.step.to_bytes(32, "big"))
        self.engine.load(self.policy, None)

    def hand_over(self) -> tuple[bytes, float]:
        """Return the digest to publish, and the seconds of a node to verify and load the
        weights."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            manifest = file.write(Path(folder), "policy", self.trainer.masters.computed(), 0, 0)
            if self.sampler is None:
                return manifest.digest, 0.0
            begun = time.perf_counter()
            file.open_verified(manifest.manifest_path)
            loading.load_weights(self.sampler, manifest.manifest_path)
            return manifest.digest, time.perf_counter() - begun

    def accuracy(self, width: int, temperature: float) -> float:
        """Return the mean reward on the held-out rows."""
        grown = self.grow(self.split.held_out, width, temperature, "eval")
        scored = [
            self._score(tree, leaves, row)
            for (tree, leaves), row in zip(grown, self.split.held_out, strict=True)
        ]
        return float(np.mean([reward for s in scored for reward in s.rewards.values()]))

    def _score(self, tree: Tree, leaves: list[Leaf], row: Row) -> ScoredTree:
        rewards: dict[Leaf, float | None] = {}
        for leaf in leaves:
            score = self.scorer.score(tree.segments[leaf.segment].text, row)
            assert isinstance(score, Scored)
            rewards[leaf] = score.value
        return ScoredTree(tree, leaves, rewards)
