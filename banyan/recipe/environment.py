"""The environment that answers the actions of paths."""

from typing import Annotated

from pydantic import Field

from banyan.recipe.part import Name, Part, Settings


class Environment(Part):
    """An environment that answers actions.

    A path that samples the environment's end mark stops there; the answer becomes a turn of the
    conversation, which is context, and the path goes on.
    """

    name: Name
    """Environment, by its registered name."""
    settings: Settings = {}
    """Settings of the environment."""
    turns: Annotated[int, Field(ge=1, le=1000)] = 8
    """Actions of a path that are answered; one more ends it."""
    answer_chars: Annotated[int, Field(ge=64, le=1_000_000)] = 2000
    """Characters of an answer that a path gets; a longer one is cut in its middle."""
