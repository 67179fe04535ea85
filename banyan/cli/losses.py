"""Settings of a recipe's loss, tried before a run is begun: only the learner, which needs torch, knows what they may be."""

from importlib.util import find_spec

from banyan.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Builds the loss where it has settings and torch is installed. Raises InvalidInput."""
    if not recipe.optimise.loss_settings or find_spec("torch") is None:
        return
    from services.learner import losses

    losses.build(recipe.optimise.loss, recipe.optimise.loss_settings)
