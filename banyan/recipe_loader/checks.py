"""Checks of a recipe's parts against each other, and against the plugins that it names."""

import contextlib
from collections.abc import Iterator
from typing import Any

from banyan import facts, registry
from banyan.environments import renderers
from banyan.errors import InvalidInput
from banyan.plugins import traits
from banyan.recipe import Recipe, Replay

# Settings of tree policies that ask for growth budget; the rule that shares it relies on the
# recipe's values.
ROOM_SETTINGS = frozenset({"start", "most"})


@contextlib.contextmanager
def named(key: str) -> Iterator[None]:
    """Prefix the message of an InvalidInput with the key in the recipe."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{key}: {error}", reason=error.reason) from error


def tree_policy(recipe: Recipe, policy: Any) -> None:
    """Raise InvalidInput if the recipe cannot have what its tree policy needs."""
    declared = traits.of_policy(policy)
    if declared.width > traits.MOST_LEAVES:
        raise InvalidInput(
            f"generate.policy {recipe.generate.policy} with these settings grows trees of"
            f" {declared.width} leaves; a tree has at most {traits.MOST_LEAVES}: grow several of a"
            " prompt by generate.trees"
        )
    if recipe.deterministic and declared.needs_scores:
        raise InvalidInput(
            f"generate.policy {recipe.generate.policy} waits for scores, which come at "
            "times that no seed fixes; set deterministic: false"
        )
    if recipe.resources.engine == "vllm" and declared.needs_entropy:
        raise InvalidInput(
            f"generate.policy {recipe.generate.policy} needs entropies, which resources.engine "
            "vllm does not provide; use torch"
        )
    if declared.truncates and not recipe.allow_truncated_sampling:
        raise InvalidInput(
            f"generate.policy {recipe.generate.policy} draws some of its tokens from a truncated "
            "distribution; set allow_truncated_sampling: true to train on them"
        )


def environment(recipe: Recipe, policy: Any) -> None:
    """Raise InvalidInput unless the environment is there and the tree policy lets paths act."""
    part = recipe.environment
    assert part is not None
    with named("environment"):
        built = registry.environment(part.name, part.settings, part.hosting)
    if recipe.deterministic and getattr(built, "deterministic", False) is not True:
        raise InvalidInput(
            f"environment {part.name} does not say that it is deterministic; set deterministic:"
            " false, or take another one"
        )
    with named("environment.renderer"):
        renderers.choose(recipe.model, part.renderer, part.renderer_settings)
    if not traits.of_policy(policy).acts:
        raise InvalidInput(
            f"generate.policy {recipe.generate.policy} does not let paths act in an environment; "
            "use turns, iid, rounds or dars, or leave environment out"
        )


def replay(replay: Replay) -> None:
    """Raise InvalidInput if the named plugin draws no groups."""
    built = registry.build("replay", replay.policy, replay.settings)
    if not callable(traits.attribute(built, "sample")):
        raise InvalidInput(
            f"replay.policy {replay.policy} gives a {type(built).__name__} without a method "
            "sample(groups, count, rng); write one, or take dots or recent"
        )


def learned_head(recipe: Recipe, policy: Any) -> None:
    """Raise InvalidInput if a head is needed but missing, or trained but unused."""
    name, engine = recipe.generate.policy, recipe.resources.engine
    needs_head = traits.of_policy(policy).needs_head
    if needs_head and engine == "vllm":
        raise InvalidInput(
            f"generate.policy {name} needs the score of a learned head, which engine vllm does "
            "not provide; use torch"
        )
    if needs_head and engine != "scripted" and recipe.optimise.head is None:
        raise InvalidInput(
            f"generate.policy {name} needs the score of a learned head; train one with "
            f"`optimise.head: {{}}`"
        )
    if recipe.optimise.head is not None and traits.attribute(policy, "observations") is None:
        raise InvalidInput(
            f"generate.policy {name} does not use a learned head; leave `optimise.head` out"
        )


def adapters(recipe: Recipe) -> None:
    """Raise InvalidInput unless vLLM is started for the kind of weights that the run trains.

    vLLM is started for adapters of some rank, or for whole weights.
    """
    resources, lora = recipe.resources, recipe.optimise.lora
    most = resources.engine_settings.get("lora_rank") if resources.engine == "vllm" else None
    if most and lora is None:
        raise InvalidInput(
            f"resources.engine_settings.lora_rank {most} starts vLLM for adapters, and without "
            "optimise.lora whole weights are trained; leave lora_rank out, or set optimise.lora"
        )
    if isinstance(most, int) and lora is not None and 0 < most < lora.rank:
        raise InvalidInput(
            f"optimise.lora.rank {lora.rank} is above resources.engine_settings.lora_rank {most}; "
            "raise that"
        )


def estimator(recipe: Recipe, policy: Any) -> None:
    """Raise InvalidInput if the estimator needs facts of trees that nothing in the recipe gives."""
    optimise, engine = recipe.optimise, recipe.resources.engine
    with named("optimise.advantage"):
        registry.find("optimise", optimise.advantage)
    with named("optimise.advantage_settings"):
        built = registry.estimator(optimise.advantage, optimise.advantage_settings)
    declared = traits.of_estimator(built)
    if declared.needs_entropy and engine == "vllm":
        raise InvalidInput(
            f"optimise.advantage {optimise.advantage} needs entropies, which resources.engine vllm "
            "does not provide; use torch"
        )
    if optimise.entropy_quantile and engine == "vllm":
        raise InvalidInput(
            f"optimise.entropy_quantile {optimise.entropy_quantile:g} needs entropies, which "
            "resources.engine vllm does not provide; use torch, or set it to 0"
        )
    _compares_something(recipe, policy, declared)
    needs, available = set(declared.needs), set(traits.of_policy(policy).gives)
    for scorer in recipe.filter:
        if ":" in scorer.name:  # the user's own: its parts are known only when it runs
            needs = {need for need in needs if not need.startswith(("part:", "attribute:"))}
        else:
            declared_parts = traits.attribute(registry.find("filter", scorer.name), "parts", ())
            available |= {facts.part(name) for name in declared_parts}
    missing = facts.lacking(needs, available)
    if missing:
        raise InvalidInput(
            f"optimise.advantage {optimise.advantage} needs {' and '.join(missing)}, which neither "
            f"generate.policy {recipe.generate.policy} nor a scorer of this recipe gives; use "
            "another, or `banyan advantages` on trees that have it"
        )


def _compares_something(recipe: Recipe, policy: Any, declared: traits.EstimatorTraits) -> None:
    """Raise InvalidInput where one leaf of a prompt would be compared with no other."""
    said = traits.attribute(policy, "width") is not None  # a policy need not say how many it grows
    leaves = traits.of_policy(policy).width * recipe.generate.trees
    users = ":" in recipe.optimise.advantage
    if said and leaves == 1 and not declared.alone and not users:
        raise InvalidInput(
            f"optimise.advantage {recipe.optimise.advantage} compares the leaves of a prompt, and"
            f" generate.policy {recipe.generate.policy} with these settings grows 1: nothing would"
            " be learnt; grow more, raise generate.trees, or take reinforce++"
        )


def rooms(recipe: Recipe, policy: Any) -> None:
    """Raise InvalidInput unless the tree policy and the sharing of the growth budget fit."""
    name, rooms = recipe.generate.policy, recipe.control.rooms
    if traits.of_policy(policy).needs_room != bool(rooms):
        raise InvalidInput(
            f"control.rooms {rooms} needs a tree policy that asks for growth budget, such as "
            f"generate.policy: rounds; got {name}"
            if rooms
            else f"generate.policy {name} asks for growth budget, which control must grant; "
            "set control.rooms, such as xrpo"
        )
    if not rooms:
        return
    if recipe.control.redundancy:
        raise InvalidInput(
            "control.rooms shares leaves among the trees that there are: set control.redundancy: 0"
        )
    curriculum = registry.build(
        "control", recipe.control.curriculum, recipe.control.curriculum_settings
    )
    setting = traits.attribute(curriculum, "setting", "")
    if isinstance(setting, str) and setting in ROOM_SETTINGS:
        raise InvalidInput(
            f"control.curriculum {recipe.control.curriculum} with setting {setting} changes what "
            f"control.rooms {rooms} counts on; leave one of them out"
        )
    share = registry.build("rooms", rooms, recipe.control.rooms_settings)
    if recipe.generate.trees != 1:
        raise InvalidInput(
            "control.rooms shares leaves among prompts: set generate.trees: 1, got "
            f"{recipe.generate.trees}"
        )
    if not callable(traits.attribute(share, "share")):
        raise InvalidInput(
            f"control.rooms {rooms} shares no growth budget: it has no method "
            "`share(waiting, budget, most, granted)`"
        )
    _count(share, "phases")
    start, most = _count(policy, "start"), _count(policy, "most")
    rollouts = _count(share, "rollouts")
    if not start <= rollouts <= most:
        raise InvalidInput(
            f"control.rooms_settings.rollouts {rollouts} must lie between "
            f"start={start} and most={most} of generate.policy {name}"
        )


def _count(plugin: object, name: str) -> int:
    """Return an attribute of a plugin; raise InvalidInput unless it is a whole number."""
    value = traits.attribute(plugin, name)
    if not isinstance(value, int):
        raise InvalidInput(
            f"{traits.label(plugin)} has {name} {value!r:.100}; growth budgets need a whole number"
        )
    return value
