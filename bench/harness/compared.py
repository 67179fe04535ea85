"""The recipe of short sums at the learning rate of the tree recipes, for comparison with them."""

from pathlib import Path

RECIPE = Path(__file__).parents[2] / "recipes" / "arithmetic.yaml"
COMPARED = ("optimise.learning_rate=2.0e-5",)
