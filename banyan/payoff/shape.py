"""Shape that a recipe gives its trees: the settings that decide where paths may part."""

from dataclasses import dataclass

from banyan import registry
from banyan.plugins import traits
from banyan.recipe import Recipe

INDEPENDENT = "iid"
# Policies with forks at fixed distances: their settings of the tokens between them, and of the
# most stretches of a path. All others fork where the model or chance says.
_STRETCHES = {"treepo": "segment", "treepo-eager": "segment", "ets": "step", "tree-grpo": "node"}
_DEPTHS = {"treepo": "max_depth", "treepo-eager": "max_depth", "ets": "depth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Number of `generate.settings`, given or by default."""

    name: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a recipe's trees.

    policy: name of the tree policy
    width: leaves of a tree
    max_new_tokens: tokens of an answer at most
    advantage: name of the estimator
    stretch: tokens between places of forks, and before the first; None if they are not fixed
    depth: stretches of a path at most; None if the policy has no such setting
    head: whether the recipe trains a learned head, which only some policies take
    votes: whether evaluations count votes of such trees, or by that head
    judged: whether sharing tokens is the policy's purpose: not for independent samples, nor where
        scores or a growth budget decide how many samples a prompt gets
    named_width: whether the policy says its width; else `width` is 1, which says nothing
    """

    policy: str
    width: int
    max_new_tokens: int
    advantage: str = "grpo"
    stretch: Setting | None = None
    depth: Setting | None = None
    head: bool = False
    votes: bool = False
    judged: bool = True
    named_width: bool = True


def shape_of(recipe: Recipe) -> Shape:
    """Return the shape of a recipe's trees. Raises InvalidInput if its policy cannot be built."""
    generate = recipe.generate
    policy = registry.build("generate", generate.policy, generate.settings)
    known = traits.of_policy(policy)
    return Shape(
        policy=generate.policy,
        width=known.width,
        named_width=traits.attribute(policy, "width") is not None,
        max_new_tokens=generate.max_new_tokens,
        advantage=recipe.optimise.advantage,
        stretch=_setting(policy, _STRETCHES.get(generate.policy)),
        depth=_setting(policy, _DEPTHS.get(generate.policy)),
        head=recipe.optimise.head is not None,
        votes=_votes(recipe),
        judged=not (generate.policy == INDEPENDENT or known.needs_scores or known.needs_room),
    )


def _votes(recipe: Recipe) -> bool:
    votes = recipe.eval.votes
    return votes is not None and (votes.policy == "recipe" or votes.weight == "head")


def _setting(policy: object, name: str | None) -> Setting | None:
    """Return a setting of a policy, given or by default."""
    return Setting(name=name, value=int(traits.attribute(policy, name))) if name else None
