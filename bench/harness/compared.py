"""The quick start's recipe, and at which rate it stands beside the tree recipes, which have this one."""

from pathlib import Path

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
COMPARED = ("optimise.learning_rate=2.0e-5",)
