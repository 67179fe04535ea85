"""Simulation of one group's trees of a recipe (`banyan simulate`).

The trees grow on the scripted engine, without a bus, a store or a model.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from banyan import registry
from banyan.draws import key
from banyan.errors import InvalidInput
from banyan.payoff.tokens import forks
from banyan.plugins import traits
from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from banyan.segment import Kind, Sampling
from banyan.tree import Leaf, Tree
from services.rollout.engines.scripted.engine import ScriptedEngine, build
from services.rollout.engines.turns import Turns
from services.rollout.growth.grants import BudgetGrant
from services.rollout.growth.grower import Grower
from services.rollout.growth.scores import LeafScore, TextRepair
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import Call, GrowthStep
from services.rollout.simulation.answers import SimulatedEnvironment
from services.rollout.simulation.script import RIGHT, stage

_ACCURACIES = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOST_STEPS = 1_000_000
_MOST_TOKENS = 500_000  # of a tree: some seconds
_MOST_S = 30.0  # of a tree, and for beginning the last of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A grown tree and its cost.

    tree: the tree.
    leaves: number of its leaves.
    sampled_tokens: policy tokens that were sampled.
    iid_tokens: policy tokens that independent samples of the same leaves would need.
    """

    tree: Tree
    leaves: int
    sampled_tokens: int
    iid_tokens: int


def simulate(recipe: Recipe) -> dict[str, Any]:
    """Return the counts of a group, as `banyan simulate` prints them.

    They are leaves, forks, sampled tokens, the tokens of independent samples, the saving, and the
    script; for a tree policy that goes on by scores also the leaves by how often it is right, and
    with an environment the number of its answers.
    """
    resources = recipe.resources
    settings = dict(resources.engine_settings) if resources.engine == "scripted" else {}
    tree_policy = registry.build("generate", recipe.generate.policy, recipe.generate.settings)
    group = _group(recipe, settings)
    sampled_tokens = sum(growth.sampled_tokens for growth in group)
    iid_tokens = sum(growth.iid_tokens for growth in group)
    counts = {
        "leaves": sum(growth.leaves for growth in group),
        "forks": sum(forks(growth.tree) for growth in group),
        "sampled_tokens": sampled_tokens,
        "iid_tokens": iid_tokens,
        "saved": 1.0 - sampled_tokens / iid_tokens if iid_tokens else 0.0,
        "script": stage(recipe, tree_policy, settings).words,
    }
    if recipe.environment is not None:
        counts["answers"] = sum(s.kind is Kind.TOOL for growth in group for s in growth.tree)
    if traits.of_policy(tree_policy).needs_scores and not settings:
        counts["leaves_by_accuracy"] = {
            f"{accuracy:g}": sum(g.leaves for g in _group(recipe, {"accuracy": accuracy}))
            for accuracy in _ACCURACIES
        }
    return counts


def grow(recipe: Recipe, index: int = 0, settings: dict[str, Any] | None = None) -> Growth:
    """Grow one tree of a recipe, on a script for its tree policy if there are no settings."""
    tree_policy = registry.build("generate", recipe.generate.policy, recipe.generate.settings)
    script = stage(recipe, tree_policy, settings)
    engine = build(
        script.settings,
        PolicyVersion(0, 0, b"scripted"),
        recipe.resources.max_branches,
        sleep=lambda _: None,
    )
    environment = (
        SimulatedEnvironment(recipe.environment, script.marks) if recipe.environment else None
    )
    spec = _spec(recipe, index, script.prompt, environment.turns if environment else None)
    grower = Grower(spec, Tree(spec.tree_id), engine.tokenizer, "simulate")
    leaves = _grow(grower, engine, recipe, time.monotonic() + _MOST_S, environment)
    if not leaves:
        raise InvalidInput(
            f"{spec.tree_policy_label}: the tree is done and has no leaf;"
            " a plan must mark its paths' ends"
        )
    tree = grower.tree
    assert tree.root is not None
    lengths = [tree.answer_length(leaf.segment, leaf.end) for leaf in leaves]
    return Growth(
        tree=tree,
        leaves=len(leaves),
        sampled_tokens=engine.stats().sampled_tokens,
        iid_tokens=sum(lengths),
    )


def _group(recipe: Recipe, settings: Mapping[str, Any]) -> list[Growth]:
    """Grow the trees of one group."""
    group: list[Growth] = []
    begun = time.monotonic()
    for index in range(recipe.generate.trees):
        if time.monotonic() - begun > _MOST_S:
            raise InvalidInput(
                f"{len(group)} of {recipe.generate.trees} trees are grown after {_MOST_S:g} s:"
                " --set generate.trees to fewer, or generate.max_new_tokens to less"
            )
        group.append(grow(recipe, index, dict(settings)))
    return group


def _spec(
    recipe: Recipe, index: int, prompt: tuple[dict[str, str], ...], turns: Turns | None
) -> GrowSpec:
    generate = recipe.generate
    ends = (turns.end,) if turns else ()
    seed = key(recipe.seed, "simulate", index)
    return GrowSpec(
        tree_id=index.to_bytes(4, "little"),
        run_id=recipe.name,
        seed=seed,
        messages=prompt,
        tree_policy=registry.build("generate", generate.policy, generate.settings),
        max_path_tokens=generate.max_new_tokens,
        sampling=Sampling(
            temperature=generate.temperature,
            top_p=generate.top_p,
            top_k=generate.top_k,
            max_new_tokens=generate.max_new_tokens,
            stop=(*generate.stop, *ends),
            seed=seed,
            bias=generate.bias,
        ),
        order=(0, index),
        name=generate.policy,
        turns=turns,
    )


def _grow(
    grower: Grower,
    engine: ScriptedEngine,
    recipe: Recipe,
    deadline: float,
    environment: SimulatedEnvironment | None,
) -> tuple[Leaf, ...]:
    """Grow a tree to its end and return its leaves. Raises InvalidInput if it does not end."""
    label = grower.spec.tree_policy_label
    step, waiting = grower.start(), deque[Call]()
    for _ in range(_MOST_STEPS):
        for request in step.requests:
            engine.submit(request)
        waiting += step.calls
        if step.grown is not None:
            return step.grown
        if waiting and environment is not None:
            call = waiting.popleft()
            step = grower.answered(call.action, environment.answer(grower.tree, call))
            continue
        if not engine.busy and not grower.waits:
            break
        if (sampled := engine.stats().sampled_tokens) > _MOST_TOKENS:
            raise InvalidInput(
                f"{label}: the tree has {sampled} sampled tokens and is not done: a simulation ends"
                f" at {_MOST_TOKENS}; generate.max_new_tokens is {recipe.generate.max_new_tokens},"
                " --set a smaller one"
            )
        if time.monotonic() > deadline:
            raise InvalidInput(
                f"{label}: the tree is not done after {_MOST_S:g} s, with"
                f" {len(grower.tree.segments)} segments and {len(grower.leaves)} leaves;"
                " does it ever say so?"
            )
        step = _next_step(grower, engine, recipe)
    raise InvalidInput(
        f"{label}: it never says that its tree is done; it has {len(grower.leaves)} leaves"
    )


def _next_step(grower: Grower, engine: ScriptedEngine, recipe: Recipe) -> GrowthStep:
    if grower.lacks_scores:
        return grower.scored(_scores(grower))
    if grower.lacks_budget:
        return grower.budget_granted(_grant(recipe))
    return grower.ended(engine.step())


def _scores(grower: Grower) -> list[LeafScore]:
    """Return the scores that a verifier would give: 1 for the right sum, and for a wrong one a
    repair from its first wrong digit on."""
    scores = []
    for leaf in grower.leaves:
        text = grower.completion(leaf).strip()
        repair = None
        if text != RIGHT:
            wrong = [at for at, digit in enumerate(RIGHT) if text[at : at + 1] != digit]
            keep = wrong[0] if wrong else len(RIGHT)
            repair = TextRepair(keep=keep, text=RIGHT[keep:], step=keep + 1, steps=len(RIGHT))
        scores.append(LeafScore(leaf, "simulate", float(text == RIGHT), repair))
    return scores


def _grant(recipe: Recipe) -> BudgetGrant:
    """Return a growth budget in the place of control, which compares prompts: a single prompt gets
    all that it brings to the pot, at once."""
    share = registry.build("rooms", recipe.control.rooms, recipe.control.rooms_settings)
    return BudgetGrant(round=1, leaves=share.rollouts, final=True)
