"""The recipe: the definition of a run as one YAML file.

Every field has its meaning, its unit and the reason for its default. Unknown keys, wrong types and
impossible combinations are refused at once, with the line and the reason.
"""

from banyan.recipe.control import Control
from banyan.recipe.environment import Environment
from banyan.recipe.filter import Filter
from banyan.recipe.generate import Generate
from banyan.recipe.logging import Logging
from banyan.recipe.measure import Budget, Eval, Votes
from banyan.recipe.optimise import Head, Lora, Optimise
from banyan.recipe.part import Part, Settings
from banyan.recipe.replay import Replay
from banyan.recipe.resources import Resources
from banyan.recipe.task import Task
from banyan.recipe.whole import Recipe

__all__ = [
    "Budget",
    "Control",
    "Environment",
    "Eval",
    "Filter",
    "Generate",
    "Head",
    "Logging",
    "Lora",
    "Optimise",
    "Part",
    "Recipe",
    "Replay",
    "Resources",
    "Settings",
    "Task",
    "Votes",
]
