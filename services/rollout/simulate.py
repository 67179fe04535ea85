"""Grows one group's trees of a recipe on the scripted engine, without a bus, a store or a model (`banyan simulate`)."""

from dataclasses import dataclass

from banyan import registry
from banyan.draws import key
from banyan.recipe import Recipe
from banyan.segment import Sampling
from banyan.tree import Tree
from services.rollout.engines.port import Policy
from services.rollout.engines.scripted import ScriptedEngine, build
from services.rollout.grower import Grower
from services.rollout.spec import GrowSpec

_PROMPT = ({"role": "user", "content": "7 + 5"},)
_MOST_STEPS = 1_000_000


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
    settings = settings or {"chain": {"": {"a": 0.5, "b": 0.5}}}
    prompt = _PROMPT if "accuracy" in settings else ({"role": "user", "content": "go"},)
    engine = build(settings, Policy(0, 0, b"scripted"), recipe.resources.max_branches, sleep=lambda _: None)
    grower = Grower(_spec(recipe, index, prompt), Tree(index.to_bytes(4, "little")), engine.tokenizer, "simulate")
    _run(grower, engine)
    root = grower.tree.root
    assert root is not None
    iid = sum(len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(root) for leaf in grower.leaves)
    return Growth(grower.tree, len(grower.leaves), engine.stats().sampled_tokens, iid)


def _spec(recipe: Recipe, index: int, prompt: tuple[dict[str, str], ...]) -> GrowSpec:
    generate, seed = recipe.generate, key(recipe.seed, "simulate", index)
    sampling = Sampling(
        generate.temperature, generate.top_p, generate.top_k, generate.max_new_tokens, tuple(generate.stop), seed
    )
    policy = registry.build("generate", generate.policy, generate.settings)
    tree_id = index.to_bytes(4, "little")
    return GrowSpec(tree_id, recipe.name, seed, prompt, policy, generate.max_new_tokens, sampling, (0, index))


def _run(grower: Grower, engine: ScriptedEngine) -> None:
    step = grower.start()
    for _ in range(_MOST_STEPS):
        for request in step.requests:
            engine.submit(request)
        if step.grown is not None:
            return
        step = grower.ended(engine.step())
    raise AssertionError(f"the tree is not grown after {_MOST_STEPS} engine steps; does its policy ever say done?")
