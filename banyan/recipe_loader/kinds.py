"""Kinds of recipes: the part of training that a recipe is about, by what it names."""

from banyan.recipe import Recipe

KINDS = {
    "trees": "how answers branch",
    "tasks": "real tasks, and labels out of votes",
    "tools": "environments: tools and games",
    "prompts": "which prompts are sampled, and what is replayed",
    "updates": "losses, estimators and adapters, on independent samples",
}
"""Kinds with what their recipes show."""
_MADE = ("arithmetic", "chains", "chains-mod")  # tasks that are made here to show a method


def kind(recipe: Recipe) -> str:
    """Return a recipe's kind, one of KINDS."""
    control = recipe.control
    if recipe.environment is not None:
        return "tools"
    if recipe.task.name not in _MADE:
        return "tasks"
    if recipe.generate.policy != "iid":
        return "trees"
    chooses = control.curriculum != "uniform" or control.over_provision or control.redundancy
    return "prompts" if chooses or recipe.replay else "updates"
