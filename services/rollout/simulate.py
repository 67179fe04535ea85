"""Grows one group's trees of a recipe on the scripted engine, without a bus, a store or a model (`banyan simulate`)."""

import time
from dataclasses import dataclass

from banyan import registry
from banyan.draws import key
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.segment import Sampling
from banyan.tree import Tree
from banyan.v1 import tree_pb2
from banyan.wire import leaf_to_wire
from services.rollout.engines.port import Policy
from services.rollout.engines.scripted import ScriptedEngine, build
from services.rollout.grower import Grower
from services.rollout.spec import GrowSpec

_PROMPT, _RIGHT = ({"role": "user", "content": "7 + 5"},), "12"
_MOST_STEPS = 1_000_000
_MOST_TOKENS = 500_000  # of a tree: some seconds
_MOST_S = 30.0  # of a tree


@dataclass(frozen=True, slots=True)
class Growth:
    """One grown tree and what it cost, in policy tokens."""

    tree: Tree
    leaves: int
    sampled_tokens: int
    iid_tokens: int


def simulate(recipe: Recipe) -> dict[str, int | float]:
    """Leaves, sampled tokens, the tokens that independent samples of the same leaves would need, and the saving."""
    settings = recipe.resources.engine_settings if recipe.resources.engine == "scripted" else {}
    grown = [grow(recipe, index, dict(settings)) for index in range(recipe.generate.trees)]
    sampled, iid = sum(g.sampled_tokens for g in grown), sum(g.iid_tokens for g in grown)
    return {
        "leaves": sum(g.leaves for g in grown),
        "sampled_tokens": sampled,
        "iid_tokens": iid,
        "saved": 1.0 - sampled / iid if iid else 0.0,
    }


def grow(recipe: Recipe, index: int = 0, settings: dict[str, object] | None = None) -> Growth:
    """One tree of the recipe's policy. By default no branch ends before its limit, which shows the policy alone."""
    default: dict[str, object] = {"accuracy": 0.3} if _waits(recipe) else {"chain": {"": {"a": 0.5, "b": 0.5}}}
    settings = settings or default
    if _waits(recipe) and "accuracy" not in settings:
        raise InvalidInput(f"generate.policy {recipe.generate.policy} waits for scores; set engine_settings.accuracy")
    prompt = _PROMPT if "accuracy" in settings else ({"role": "user", "content": "go"},)
    engine = build(settings, Policy(0, 0, b"scripted"), recipe.resources.max_branches, sleep=lambda _: None)
    grower = Grower(_spec(recipe, index, prompt), Tree(index.to_bytes(4, "little")), engine.tokenizer, "simulate")
    _run(grower, engine, recipe)
    root = grower.tree.root
    assert root is not None
    iid = sum(len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(root) for leaf in grower.leaves)
    return Growth(grower.tree, len(grower.leaves), engine.stats().sampled_tokens, iid)


def _waits(recipe: Recipe) -> bool:
    policy = registry.build("generate", recipe.generate.policy, recipe.generate.settings)
    return bool(getattr(policy, "needs_scores", False))


def _scores(grower: Grower) -> list[tree_pb2.ScoredLeaf]:
    """What a verifier would say: 1 for the right sum."""
    scored = []
    for leaf in grower.leaves:
        value = float(grower.completion(leaf).strip() == _RIGHT)
        said = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
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
        tree_id, recipe.name, seed, prompt, policy, generate.max_new_tokens, sampling, (0, index), name=generate.policy
    )


def _room(recipe: Recipe) -> tree_pb2.TreeRoom:
    """Stands in for control, which compares prompts: one alone gets all that it brings, at once."""
    share = registry.build("rooms", recipe.control.rooms, recipe.control.rooms_settings)
    return tree_pb2.TreeRoom(leaves=share.rollouts, final=True, round=1)


def _run(grower: Grower, engine: ScriptedEngine, recipe: Recipe) -> None:
    _grown(grower, engine, recipe, time.monotonic() + _MOST_S)
    if not grower.leaves:
        raise InvalidInput(f"{grower.spec.said}: the tree is done and has no leaf; a plan must mark its paths' ends")


def _grown(grower: Grower, engine: ScriptedEngine, recipe: Recipe, deadline: float) -> None:
    step = grower.start()
    for _ in range(_MOST_STEPS):
        for request in step.requests:
            engine.submit(request)
        if step.grown is not None:
            return
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
            step = grower.roomed(_room(recipe)) if grower.lacks_room else grower.ended(engine.step())
    raise InvalidInput(f"{grower.spec.said}: it never says that its tree is done; it has {len(grower.leaves)} leaves")
