"""Training groups in virtual time: control's gate and growers on the scripted engine.

A run is counted in steps of the engine, with the tokens that each prefills and decodes; what these
take follows from a latency, which decides about no token. Nothing is scored or trained: a step of
the policy ends the running branches, which then go on first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from banyan import registry
from banyan.draws import key
from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from banyan.recipe_loader.load import resolve
from banyan.segment import Kind, Sampling
from banyan.tree import Tree
from services.gateway.runs.staleness_gate import Gate, GroupCounts
from services.rollout.engines.port import Sampled
from services.rollout.engines.scripted.engine import build
from services.rollout.engines.scripted.latency import Latency
from services.rollout.growth.grower import Grower
from services.rollout.growth.requests import BranchKey
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import GrowthStep

Chain = Mapping[str, Mapping[str, float]]
_PROMPT = ({"role": "user", "content": "go on"},)


@dataclass(frozen=True)
class Step:
    """A step of the policy.

    ticks: tokens prefilled and branches decoded in each step of the engine
    lengths: tokens of the trees that the batch takes
    wasted: tokens of trees that were stopped
    """

    ticks: Sequence[tuple[int, int]]
    lengths: Sequence[int]
    wasted: int

    def seconds(self, latency: Latency) -> float:
        """Return the time that it takes."""
        return sum(latency.step(*tick) for tick in self.ticks)


@dataclass
class _Group:
    """A group in hand: its trees that grow, and those that are done, in the order of their ends."""

    take: int
    growing: dict[bytes, Grower] = field(default_factory=dict)
    done: list[Grower] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        return len(self.done) >= self.take


def recipe(seed: int, generate: Mapping[str, Any], control: Mapping[str, Any]) -> Recipe:
    """Return a recipe of independent samples on the scripted engine."""
    return resolve(
        {
            "name": "claims",
            "model": "none",
            "task": {"name": "arithmetic"},
            "generate": {"policy": "iid", **generate},
            "control": dict(control),
            "resources": {"engine": "scripted", "max_branches": 65_536},
            "seed": seed,
        }
    )


class VirtualRun:
    """A run of so many steps."""

    def __init__(self, recipe: Recipe, chain: Chain, steps: int) -> None:
        self._recipe, self._steps = recipe, steps
        self._gate, self._batch = Gate.of(recipe.control), recipe.control.groups_per_batch
        first = PolicyVersion(0, 0, b"virtual")
        most = recipe.resources.max_branches
        self._engine = build({"chain": chain}, first, most, sleep=lambda _: None)
        self._in_hand: list[_Group] = []
        self._closed: list[_Group] = []
        self._homes: dict[bytes, _Group] = {}
        self._opened = self._step = self._wasted = 0

    def advance(self) -> Step:
        """Return the next step: sampling until a batch is closed, then another policy."""
        self._open()
        ticks, before = list[tuple[int, int]](), self._wasted
        while len(self._closed) < self._batch:
            ticks.append(self._tick())
        batch, self._closed = self._closed[: self._batch], self._closed[self._batch :]
        self._step += 1
        self._take_in(self._engine.load(PolicyVersion(0, self._step, b"virtual"), None))
        lengths = [_sampled(tree) for group in batch for tree in group.done]
        return Step(ticks, lengths, self._wasted - before)

    def _open(self) -> None:
        counts = GroupCounts(
            step=self._step,
            batches=self._step,
            open=len(self._in_hand),
            closed=len(self._closed),
            opened=self._opened,
            consumed=self._step * self._batch,
        )
        for _ in range(self._gate.groups_to_open(counts, self._steps)):
            self._begin(self._opened)
            self._opened += 1

    def _begin(self, ordinal: int) -> None:
        take = self._recipe.generate.trees
        group = _Group(take)
        self._in_hand.append(group)
        for index in range(take + self._recipe.control.redundancy):
            spec = _spec(self._recipe, ordinal, index)
            grower = Grower(spec, Tree(spec.tree_id), self._engine.tokenizer, "claims", 1)
            group.growing[spec.tree_id], self._homes[spec.tree_id] = grower, group
            self._carry_out(group, grower, grower.start())

    def _tick(self) -> tuple[int, int]:
        before = self._engine.stats()
        ended = self._engine.step()
        after = self._engine.stats()
        self._take_in(ended)
        prefilled = after.prefilled_tokens - before.prefilled_tokens
        return prefilled, after.sampled_tokens - before.sampled_tokens

    def _take_in(self, samples: Sequence[Sampled]) -> None:
        for sample in samples:
            assert isinstance(sample.key, BranchKey)
            group = self._homes[sample.key.tree_id]
            grower = group.growing.get(sample.key.tree_id)
            if grower is not None:
                self._carry_out(group, grower, grower.ended([sample]))

    def _carry_out(self, group: _Group, grower: Grower, step: GrowthStep) -> None:
        for request in step.requests:
            self._engine.submit(request)
        if step.grown is None or group.closed:
            return
        group.done.append(group.growing.pop(grower.spec.tree_id))
        if group.closed:
            self._close(group)

    def _close(self, group: _Group) -> None:
        """Stop the trees that the group does not take."""
        for grower in group.growing.values():
            for branch in list(grower.in_flight):
                sample = self._engine.abort(grower.key(branch))
                self._wasted += len(sample.tokens_T) if sample is not None else 0
            self._wasted += _sampled(grower)
        group.growing.clear()
        self._in_hand.remove(group)
        self._closed.append(group)


def run(recipe: Recipe, chain: Chain, steps: int) -> list[Step]:
    """Return all steps of a run."""
    virtual = VirtualRun(recipe, chain, steps)
    return [virtual.advance() for _ in range(steps)]


def _sampled(grower: Grower) -> int:
    return sum(len(segment) for segment in grower.tree if segment.kind is Kind.POLICY)


def _spec(recipe: Recipe, ordinal: int, index: int) -> GrowSpec:
    part, seed = recipe.generate, key(recipe.seed, "claims", ordinal, index)
    return GrowSpec(
        tree_id=ordinal.to_bytes(8, "little") + index.to_bytes(8, "little"),
        run_id=recipe.name,
        seed=seed,
        messages=_PROMPT,
        tree_policy=registry.build("generate", part.policy, part.settings),
        max_path_tokens=part.max_new_tokens,
        sampling=Sampling(1.0, 1.0, 0, part.max_new_tokens, (), seed),
        order=(ordinal, index),
        name=part.policy,
    )


def mixed(*parts: tuple[float, float]) -> Chain:
    """Return a chain of paths whose lengths are drawn from geometric laws.

    parts: the share of each law among paths, and its mean in tokens
    """
    letters = "abcdefgh"[: len(parts)]
    shares = {a: share for a, (share, _) in zip(letters, parts, strict=True)}
    ends = {a: 1 / mean for a, (_, mean) in zip(letters, parts, strict=True)}
    return {"": shares} | {a: {a: 1 - end, "": end} for a, end in ends.items()}
