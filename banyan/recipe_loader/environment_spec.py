"""The environment of a recipe, as the trees of its runs have it."""

from dataclasses import replace

from banyan.environments import renderers
from banyan.recipe import Recipe
from banyan.wire.generate_spec import EnvironmentSpec


def environment_of(recipe: Recipe, longest_path: int = 0) -> EnvironmentSpec | None:
    """Return the environment of a recipe's trees; None for none.

    longest_path: tokens that the model's longest path has; 0 if unknown.
    """
    part = recipe.environment
    if part is None:
        return None
    return EnvironmentSpec(
        name=part.name,
        settings=part.settings,
        turns=part.turns,
        answer_chars=part.answer_chars,
        hosting=part.hosting
        and replace(part.hosting, withheld=recipe.task.files, deterministic=recipe.deterministic),
        renderer=renderers.choose(recipe.model, part.renderer, part.renderer_settings),
        episode_s=part.episode_s,
        longest_path=longest_path,
        deterministic=recipe.deterministic,
    )
