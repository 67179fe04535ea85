"""Trees that grow on the scripted engine in tests: specs, a driver, and interruptions."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from banyan import registry
from banyan.draws import Draws
from banyan.plugins import Branch, Expansion, GrowthBudget, GrowthView, Plan
from banyan.policy import PolicyVersion
from banyan.segment import Sampling
from banyan.tree import Leaf, Tree
from services.rollout.engines.scripted.engine import ScriptedEngine, build
from services.rollout.growth.grower import Grower
from services.rollout.growth.spec import GrowSpec

IID = "methods.generate.iid:Iid"
TREEPO = "methods.generate.treepo.policy:TreePO"
ENDLESS: Mapping[str, Any] = {"chain": {"": {"a": 0.5, "b": 0.5}}}
ENDING: Mapping[str, Any] = {"chain": {"": {"a": 0.45, "b": 0.4, "": 0.15}}}


def spec(
    policy: str, settings: Mapping[str, Any], max_tokens: int = 16, seed: int = 5, **more: Any
) -> GrowSpec:
    """Return the assignment of a tree."""
    return GrowSpec(
        tree_id=seed.to_bytes(32, "little"),
        run_id="run",
        seed=seed,
        messages=({"role": "user", "content": "go"},),
        tree_policy=registry.build("generate", policy, settings),
        max_path_tokens=max_tokens,
        sampling=Sampling(max_new_tokens=max_tokens, seed=seed),
        order=(0, 0),
        **more,
    )


def engine(
    settings: Mapping[str, Any] = ENDING, step: int = 0, max_branches: int = 64
) -> ScriptedEngine:
    """Return a scripted engine."""
    return build(dict(settings), PolicyVersion(1, step, b"p%d" % step), max_branches)


def grow(
    assignment: GrowSpec,
    scripted: ScriptedEngine,
    tree: Tree | None = None,
    leaves: Mapping[Leaf, str] | None = None,
    most_steps: int = 10_000,
) -> tuple[Grower, bool]:
    """Grow a tree to its end, or for some engine steps; return whether it came to its end."""
    grower = Grower(
        assignment,
        tree or Tree(assignment.tree_id),
        scripted.tokenizer,
        "test",
        leaves=dict(leaves or {}),
    )
    step = grower.start()
    for _ in range(most_steps):
        for request in step.requests:
            scripted.submit(request)
        if step.grown is not None:
            assert set(step.grown) == set(grower.leaves)
            return grower, True
        step = grower.ended(scripted.step())
    assert most_steps < 10_000, "the tree is never grown"
    return grower, step.grown is not None


def survivors(tree: Tree, rng: random.Random) -> Tree:
    """Return a part of a tree that the store may have when its node dies: some of its segments,
    each with all its ancestors."""
    kept = Tree(tree.tree_id)
    for segment in tree:
        if (not segment.parent or segment.parent in kept.segments) and rng.random() < 0.8:
            kept.add(segment)
    return kept


def shape(grower: Grower) -> tuple[set[bytes], set[Leaf]]:
    """Return the identity of a grown tree."""
    return set(grower.tree.segments), set(grower.leaves)


@dataclass(frozen=True)
class Failing:
    """A tree policy that raises once `after` segments are there."""

    after: int = 1
    message: str = "in a user's policy"

    def plan(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Plan:
        if len(view.tree.segments) > self.after:
            raise ZeroDivisionError(self.message)
        sampling = replace(view.sampling, max_new_tokens=view.max_path_tokens)
        return Plan(
            tuple(Expansion(Branch(view.root.id, len(view.root), i), sampling) for i in range(4))
        )
