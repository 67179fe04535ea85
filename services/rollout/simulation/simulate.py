"""Grows one group's trees of a recipe on the scripted engine, without a bus, a store or a model (`banyan simulate`)."""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from banyan import registry
from banyan.draws import key
from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from banyan.segment import Sampling
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_to_wire
from services.rollout.engines.scripted.engine import ScriptedEngine, build
from services.rollout.growth.grower import Grower
from services.rollout.growth.spec import GrowSpec
from services.rollout.simulation.script import RIGHT, stage

_ACCURACIES = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOST_STEPS = 1_000_000
_MOST_TOKENS = 500_000  # of a tree: some seconds
_MOST_S = 30.0  # of a tree, and for beginning the last of a group


@dataclass(frozen=True, slots=True)
class Growth:
    """One grown tree and what it cost, in policy tokens."""

    tree: Tree
    leaves: int
    sampled_tokens: int
    iid_tokens: int


def simulate(recipe: Recipe) -> dict[str, Any]:
    """Leaves and forks, sampled tokens, what independent samples of the same leaves would need, the saving, and the script.

    Of a policy that goes on by scores also the leaves by how often it is right.
    """
    given = dict(recipe.resources.engine_settings) if recipe.resources.engine == "scripted" else {}
    policy = registry.build("generate", recipe.generate.policy, recipe.generate.settings)
    grown = _grove(recipe, given)
    sampled, iid = sum(g.sampled_tokens for g in grown), sum(g.iid_tokens for g in grown)
    found = {
        "leaves": sum(g.leaves for g in grown),
        "forks": sum(forks(g.tree) for g in grown),
        "sampled_tokens": sampled,
        "iid_tokens": iid,
        "saved": 1.0 - sampled / iid if iid else 0.0,
        "script": stage(recipe, policy, given).words,
    }
    if getattr(policy, "needs_scores", False) and not given:
        by_accuracy = {
            f"{p:g}": sum(g.leaves for g in _grove(recipe, {"accuracy": p})) for p in _ACCURACIES
        }
        found["leaves_by_accuracy"] = by_accuracy
    return found


def _grove(recipe: Recipe, settings: dict[str, Any]) -> list[Growth]:
    grown, begun = list[Growth](), time.monotonic()
    for index in range(recipe.generate.trees):
        if time.monotonic() - begun > _MOST_S:
            trees = f"{len(grown)} of {recipe.generate.trees} trees are grown after {_MOST_S:g} s"
            raise InvalidInput(
                f"{trees}: --set generate.trees to fewer, or generate.max_new_tokens to less"
            )
        grown.append(grow(recipe, index, dict(settings)))
    return grown


def forks(tree: Tree) -> int:
    """Places behind the prompt at which paths part."""
    root = tree.root
    places = Counter(
        (s.parent, s.fork) for s in tree if s.parent and root is not None and s.parent != root.id
    )
    return sum(
        count > 1 or fork < len(tree.segments[parent]) for (parent, fork), count in places.items()
    )


def grow(recipe: Recipe, index: int = 0, settings: dict[str, Any] | None = None) -> Growth:
    """One tree of the recipe's policy, on its own stage if there are no settings."""
    policy = registry.build("generate", recipe.generate.policy, recipe.generate.settings)
    given = stage(recipe, policy, settings)
    engine = build(
        given.settings,
        PolicyVersion(0, 0, b"scripted"),
        recipe.resources.max_branches,
        sleep=lambda _: None,
    )
    grower = Grower(
        _spec(recipe, index, given.prompt),
        Tree(index.to_bytes(4, "little")),
        engine.tokenizer,
        "simulate",
    )
    leaves = _run(grower, engine, recipe)
    root = grower.tree.root
    assert root is not None
    iid = sum(len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(root) for leaf in leaves)
    return Growth(grower.tree, len(leaves), engine.stats().sampled_tokens, iid)


def _scores(grower: Grower) -> list[tree_pb2.ScoredLeaf]:
    """What a verifier would say: 1 for the right sum, and of a wrong one which digit is the first wrong one."""
    scored = []
    for leaf in grower.leaves:
        text = grower.completion(leaf).strip()
        said = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=float(text == RIGHT))
        if text != RIGHT:
            keep = next(
                (at for at, digit in enumerate(RIGHT) if text[at : at + 1] != digit), len(RIGHT)
            )
            said.repair.CopyFrom(
                tree_pb2.Repair(keep=keep, text=RIGHT[keep:], step=keep + 1, steps=len(RIGHT))
            )
        scored.append(tree_pb2.ScoredLeaf(leaf=leaf_to_wire(leaf), scorer="simulate", score=said))
    return scored


def _spec(recipe: Recipe, index: int, prompt: tuple[dict[str, str], ...]) -> GrowSpec:
    generate, seed = recipe.generate, key(recipe.seed, "simulate", index)
    sampling = Sampling(
        generate.temperature,
        generate.top_p,
        generate.top_k,
        generate.max_new_tokens,
        tuple(generate.stop),
        seed,
        generate.bias,
    )
    policy = registry.build("generate", generate.policy, generate.settings)
    tree_id = index.to_bytes(4, "little")
    return GrowSpec(
        tree_id,
        recipe.name,
        seed,
        prompt,
        policy,
        generate.max_new_tokens,
        sampling,
        (0, index),
        name=generate.policy,
    )


def _room(recipe: Recipe) -> tree_pb2.TreeRoom:
    """Stands in for control, which compares prompts: one alone gets all that it brings to the pot, at once."""
    share = registry.build("rooms", recipe.control.rooms, recipe.control.rooms_settings)
    return tree_pb2.TreeRoom(leaves=share.rollouts, final=True, round=1)


def _run(grower: Grower, engine: ScriptedEngine, recipe: Recipe) -> tuple[Leaf, ...]:
    leaves = _grown(grower, engine, recipe, time.monotonic() + _MOST_S)
    if not leaves:
        raise InvalidInput(
            f"{grower.spec.said}: the tree is done and has no leaf; a plan must mark its paths' ends"
        )
    return leaves


def _grown(
    grower: Grower, engine: ScriptedEngine, recipe: Recipe, deadline: float
) -> tuple[Leaf, ...]:
    step = grower.start()
    for _ in range(_MOST_STEPS):
        for request in step.requests:
            engine.submit(request)
        if step.grown is not None:
            return step.grown
        if not engine.busy and not grower.waits:
            break
        if (sampled := engine.stats().sampled_tokens) > _MOST_TOKENS:
            raise InvalidInput(
                f"{grower.spec.said}: the tree has {sampled} sampled tokens and is not done: a simulation ends at"
                f" {_MOST_TOKENS}; generate.max_new_tokens is {recipe.generate.max_new_tokens}, --set a smaller one"
            )
        if time.monotonic() > deadline:
            size = f"{len(grower.tree.segments)} segments and {len(grower.leaves)} leaves"
            raise InvalidInput(
                f"{grower.spec.said}: the tree is not done after {_MOST_S:g} s, with {size}; does it ever say so?"
            )
        if grower.lacks_scores:
            step = grower.scored(_scores(grower))
        else:
            step = (
                grower.roomed(_room(recipe)) if grower.lacks_room else grower.ended(engine.step())
            )
    raise InvalidInput(
        f"{grower.spec.said}: it never says that its tree is done; it has {len(grower.leaves)} leaves"
    )
